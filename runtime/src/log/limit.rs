//! How many lines of one kind, and of one kind about one peer, are written in a while.
//!
//! A kind is the place in the code that logs, so there are as many as the program has of them. A
//! kind remembers only peers whose lines were written, so it remembers at most [`LINES_PER_KIND`]
//! of them.

use std::fmt::{self, Write};
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level};

/// The kinds of lines that were written a short time ago.
#[derive(Debug)]
pub(super) struct Limit {
    kinds: Mutex<Vec<Kind>>,
}

#[derive(Debug)]
struct Kind {
    callsite: Identifier,
    level: Level,
    /// When the counts start again at 0.
    ends: Instant,
    lines: u32,
    peers: Vec<PeerLines>,
    /// Lines held back that are about none of `peers`.
    suppressed: u64,
    /// The beginning of the first line that was held back.
    sample: String,
}

#[derive(Debug)]
struct PeerLines {
    peer: String,
    lines: u32,
    suppressed: u64,
}

/// What is said at the end of a window about lines that were held back.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Summary {
    level: Level,
    sample: String,
    peer: Option<String>,
    suppressed: u64,
}

impl Limit {
    pub(super) fn new() -> Self {
        Self {
            kinds: Mutex::new(Vec::new()),
        }
    }

    /// Whether `event` is written, and what is to be said before it of lines that were not.
    pub(super) fn admit(&self, event: &Event<'_>, now: Instant) -> (bool, Vec<Summary>) {
        let metadata = event.metadata();
        // Who asks for details wants all of them; and what says that lines are missing must not be
        // missing.
        let is_limited =
            *metadata.level() <= Level::INFO && metadata.target() != super::queue::TARGET;
        if !is_limited {
            return (true, Vec::new());
        }
        let peer = Text::of(event, "peer", PEER_BYTES_MAX).map(without_port);
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let callsite = metadata.callsite();
        let index = match kinds.iter().position(|kind| kind.callsite == callsite) {
            Some(index) => index,
            None => {
                kinds.push(Kind::new(callsite, *metadata.level(), now));
                kinds.len() - 1
            }
        };
        let kind = &mut kinds[index];
        let ended = if kind.ends <= now {
            kind.end_window(now)
        } else {
            Vec::new()
        };
        let is_admitted = kind.admit(peer);
        if !is_admitted && kind.sample.is_empty() {
            kind.sample = Text::of(event, "message", SAMPLE_BYTES_MAX).unwrap_or_default();
        }
        (is_admitted, ended)
    }

    /// What is to be said of windows that have ended, or of all, and when the next one ends.
    pub(super) fn end_windows(&self, now: Instant, all: bool) -> (Vec<Summary>, Option<Instant>) {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ended = Vec::new();
        for kind in kinds.iter_mut() {
            if kind.lines > 0 && (all || kind.ends <= now) {
                ended.extend(kind.end_window(now));
            }
        }
        let open = kinds.iter().filter(|kind| kind.lines > 0);
        (ended, open.map(|kind| kind.ends).min())
    }
}

impl Kind {
    fn new(callsite: Identifier, level: Level, now: Instant) -> Self {
        Self {
            callsite,
            level,
            ends: now + WINDOW,
            lines: 0,
            peers: Vec::new(),
            suppressed: 0,
            sample: String::new(),
        }
    }

    fn admit(&mut self, peer: Option<String>) -> bool {
        let known = peer.and_then(|peer| {
            let known = self.peers.iter().position(|known| known.peer == peer);
            if known.is_none() && self.lines < LINES_PER_KIND {
                self.peers.push(PeerLines {
                    peer,
                    lines: 0,
                    suppressed: 0,
                });
                return Some(self.peers.len() - 1);
            }
            known
        });
        let has_place = self.lines < LINES_PER_KIND;
        match known.map(|known| &mut self.peers[known]) {
            Some(peer) if has_place && peer.lines < LINES_PER_PEER => peer.lines += 1,
            Some(peer) => {
                peer.suppressed += 1;
                return false;
            }
            None if has_place => {}
            None => {
                self.suppressed += 1;
                return false;
            }
        }
        self.lines += 1;
        true
    }

    /// Begins a new window, and says what the old one held back.
    fn end_window(&mut self, now: Instant) -> Vec<Summary> {
        let sample = std::mem::take(&mut self.sample);
        let mut counts: Vec<(Option<String>, u64)> = self
            .peers
            .drain(..)
            .map(|peer| (Some(peer.peer), peer.suppressed))
            .collect();
        counts.push((None, std::mem::take(&mut self.suppressed)));
        self.lines = 0;
        self.ends = now + WINDOW;
        let held_back = counts.into_iter().filter(|(_, count)| *count > 0);
        held_back
            .map(|(peer, suppressed)| Summary {
                level: self.level,
                sample: sample.clone(),
                peer,
                suppressed,
            })
            .collect()
    }
}

impl Summary {
    /// Logs it, as severe as the lines that it stands for.
    pub(super) fn tell(&self) {
        let Self {
            level,
            sample,
            peer,
            suppressed,
        } = self;
        let peer = peer.as_deref();
        match *level {
            Level::ERROR => {
                tracing::error!(target: super::queue::TARGET, peer, "{suppressed} more like this: {sample}");
            }
            Level::WARN => {
                tracing::warn!(target: super::queue::TARGET, peer, "{suppressed} more like this: {sample}");
            }
            Level::INFO | Level::DEBUG | Level::TRACE => {
                tracing::info!(target: super::queue::TARGET, peer, "{suppressed} more like this: {sample}");
            }
        }
    }
}

/// The beginning of a field of an event.
struct Text {
    name: &'static str,
    bytes_max: usize,
    found: Option<String>,
}

impl Text {
    fn of(event: &Event<'_>, name: &'static str, bytes_max: usize) -> Option<String> {
        let mut text = Self {
            name,
            bytes_max,
            found: None,
        };
        event.record(&mut text);
        text.found
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == self.name {
            let mut beginning = Beginning {
                text: String::new(),
                bytes_max: self.bytes_max,
            };
            // It fails where the text is cut.
            let _ = write!(beginning, "{value:?}");
            self.found = Some(beginning.text);
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

/// Takes text up to a length.
struct Beginning {
    text: String,
    bytes_max: usize,
}

impl Write for Beginning {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        let left = self.bytes_max - self.text.len();
        if piece.len() <= left {
            self.text.push_str(piece);
            return Ok(());
        }
        let end = (0..=left).rev().find(|&at| piece.is_char_boundary(at));
        self.text.push_str(&piece[..end.unwrap_or(0)]);
        Err(fmt::Error)
    }
}

/// A peer that dials has another port each time, so its address alone says who it is.
fn without_port(peer: String) -> String {
    match peer.parse::<SocketAddr>() {
        Ok(address) => address.ip().to_string(),
        Err(_) => peer,
    }
}

/// How long lines are counted before the counts start again.
const WINDOW: Duration = Duration::from_secs(10);
/// Lines of one kind about one peer that are written in a window.
const LINES_PER_PEER: u32 = 5;
/// Lines of one kind that are written in a window.
const LINES_PER_KIND: u32 = 50;
const PEER_BYTES_MAX: usize = 128;
const SAMPLE_BYTES_MAX: usize = 200;

#[cfg(all(test, not(loom)))]
mod tests;
