//! Links that start on another medium and move to shared memory.
//!
//! The stream of a link is cut between two frames, in each direction by itself: its sender says over the UNIX socket
//! how many bytes the first medium has, and puts what follows into its ring; its receiver goes on in the ring once it
//! has taken so many bytes. Nothing is sent on the first medium but the stream, nothing is sent twice, and whoever
//! uses the link notices nothing. The link on the first medium stays until the end.

mod flow;
mod offer;
mod park;
mod steps;
mod tap;

pub(crate) use offer::secret;

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use grpcxx_transport::{
    Frame, LinkHandler, LinkId, LinkTable, ListenerId, Next, Park, Refusal, Refused, Time,
    Transport, TransportError,
};

use self::flow::{Flow, Stage};
use self::offer::{HostId, Offer};
use self::tap::Tap;
use crate::bounce::Bounce;
use crate::channel::failure;
use crate::door::Door;
use crate::link::Phase;
use crate::loans::Orphan;
use crate::poller::{HEARD_AT_ONCE, Poller};
use crate::sight::BlindSpots;
use crate::transport::{EVENTS_ENOUGH, STAGING_BYTES};
use crate::{ShmCounters, ShmOptions};

/// A transport whose links move to shared memory where both ends are on one host and run as one user.
///
/// [`ShmOptions::limits`] bounds the links that have moved, and the frames that wait in each of them.
pub struct Upgrading<T> {
    base: T,
    flows: LinkTable<Flow>,
    by_base: Vec<Option<LinkId>>,
    medium: Option<Medium>,
    /// Flows in [`Stage::Moved`].
    moved: Vec<LinkId>,
    /// Flows in [`Stage::Asked`], and some that have gone on since.
    asked: Vec<LinkId>,
    frames_in_flight: usize,
    counters: ShmCounters,
    last_failure: Option<String>,
    /// What the handler has not been told.
    notes: VecDeque<(LinkId, Note)>,
    /// When a link in shared memory had an event.
    stirred: Option<Time>,
    turns_without_base: u32,
    now: Time,
}

/// What became of a move.
enum Note {
    Moved,
    Stayed(String),
}

/// What is needed for links in shared memory.
struct Medium {
    options: ShmOptions,
    blind_spots: BlindSpots,
    host: HostId,
    poller: Poller,
    door: Door,
    orphans: Vec<Orphan>,
    staging: Box<[u8]>,
    bounce: Bounce,
    heard: Vec<LinkId>,
    others_heard: bool,
    polled: Option<Time>,
    turns_since_poll: u32,
}

impl Medium {
    /// How channels shall work.
    fn manner(&self) -> (&ShmOptions, &BlindSpots) {
        (&self.options, &self.blind_spots)
    }
}

impl<T: Park> Upgrading<T> {
    /// A transport that has no links yet. They stay on it until [`Upgrading::enable`].
    pub fn new(base: T) -> Self {
        Self {
            base,
            flows: LinkTable::new(),
            by_base: Vec::new(),
            medium: None,
            moved: Vec::new(),
            asked: Vec::new(),
            frames_in_flight: 0,
            counters: ShmCounters::default(),
            last_failure: None,
            notes: VecDeque::new(),
            stirred: None,
            turns_without_base: 0,
            now: Time::ZERO,
        }
    }

    /// Lets links move from now on.
    ///
    /// # Errors
    /// What links need here to share memory cannot be had. They stay where they are.
    pub fn enable(&mut self, options: ShmOptions) -> Result<(), TransportError> {
        self.medium = Some(Medium::open(&mut self.base, options)?);
        Ok(())
    }

    /// What links have done in shared memory so far.
    pub fn counters(&self) -> ShmCounters {
        self.counters
    }

    /// Links that are in shared memory now.
    pub fn moved_links(&self) -> usize {
        self.moved.len()
    }

    /// Why the last link that could not move stayed where it was.
    pub fn last_failure(&self) -> Option<&str> {
        self.last_failure.as_deref()
    }

    /// The link on the first medium that a link has started on; `None` if it is gone.
    pub fn base_link(&mut self, link: LinkId) -> Option<LinkId> {
        self.flows.find(link)?.base
    }

    /// The transport that links start on.
    pub fn base(&self) -> &T {
        &self.base
    }

    fn insert(&mut self, flow: Flow) -> LinkId {
        let base = flow.base;
        let id = self.flows.insert(flow);
        if let Some(base) = base {
            let slot = base.slot as usize;
            if self.by_base.len() <= slot {
                self.by_base.resize(slot + 1, None);
            }
            self.by_base[slot] = Some(id);
        }
        id
    }

    /// Whether the first medium has its turn: always, but while shared memory is busy only now and then, since each
    /// look costs a system call.
    fn is_turn_of_base(&mut self, now: Time) -> bool {
        self.turns_without_base += 1;
        let is_busy = self
            .stirred
            .is_some_and(|stirred| now.since(stirred) < BUSY_TIME);
        if is_busy && self.turns_without_base < TURNS_PER_BASE {
            return false;
        }
        self.turns_without_base = 0;
        true
    }
}

impl Medium {
    fn open(base: &mut impl Park, options: ShmOptions) -> Result<Self, TransportError> {
        let host = offer::host_id().ok_or_else(|| TransportError {
            operation: "read /proc/sys/kernel/random/boot_id".to_owned(),
            errno: 0,
            message: "it does not tell which host this is".to_owned(),
        })?;
        let poller = Poller::new()
            .map_err(|errno| failure("set up epoll for links over shared memory", errno))?;
        let name = format!(
            "grpcxx-link-{}-{:016x}",
            std::process::id(),
            offer::secret()
        );
        let door = Door::open(name.into_bytes(), &poller)
            .map_err(|errno| failure("listen on an abstract UNIX socket", errno))?;
        base.watch(poller.as_fd())?;
        let bounce = Bounce::new(&options);
        Ok(Self {
            options,
            blind_spots: BlindSpots::default(),
            host,
            poller,
            door,
            orphans: Vec::new(),
            staging: vec![0; STAGING_BYTES].into_boxed_slice(),
            bounce,
            heard: Vec::with_capacity(HEARD_AT_ONCE),
            others_heard: false,
            polled: None,
            turns_since_poll: 0,
        })
    }
}

impl<T: Park> Transport for Upgrading<T> {
    type Accepted = T::Accepted;

    fn name(&self) -> &'static str {
        self.base.name()
    }

    fn listen(&mut self, address: SocketAddr) -> Result<(ListenerId, SocketAddr), TransportError> {
        self.base.listen(address)
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.base.unlisten(listener);
    }

    fn adopt(&mut self, accepted: T::Accepted, next: Next) -> Result<LinkId, TransportError> {
        let mut flow = Flow::default();
        flow.note(&next);
        flow.base = Some(self.base.adopt(accepted, next)?);
        Ok(self.insert(flow))
    }

    fn connect(&mut self, peer: SocketAddr) -> Result<LinkId, TransportError> {
        let mut flow = Flow::default();
        flow.base = Some(self.base.connect(peer)?);
        Ok(self.insert(flow))
    }

    fn send(&mut self, link: LinkId, frame: Box<Frame>) -> Result<(), Refused<Box<Frame>>> {
        let refuse = |value, refusal| Err(Refused { value, refusal });
        let Some(flow) = self.flows.find(link) else {
            return refuse(frame, Refusal::NotOpen);
        };
        if let Stage::Moved(moved) = &mut flow.stage {
            let Some(medium) = &mut self.medium else {
                return refuse(frame, Refusal::NotOpen);
            };
            let limit = medium.options.limits.queued_frames;
            return match (&moved.phase, &mut moved.channel) {
                (Phase::Open, Some(channel)) if channel.queued_frames() < limit => {
                    channel.push(frame, &mut medium.bounce, &mut self.counters);
                    self.frames_in_flight += 1;
                    Ok(())
                }
                (Phase::Open, Some(_)) => refuse(frame, Refusal::Full),
                _ => refuse(frame, Refusal::NotOpen),
            };
        }
        let Some(base) = flow.base else {
            return refuse(frame, Refusal::NotOpen);
        };
        let bytes = frame.len_bytes();
        self.base.send(base, frame)?;
        flow.sent_bytes += bytes;
        flow.base_frames += 1;
        Ok(())
    }

    fn resume(&mut self, link: LinkId, next: Next) -> Result<(), Refused<Next>> {
        let refuse = |value, refusal| Err(Refused { value, refusal });
        let Some(flow) = self.flows.find(link) else {
            return refuse(next, Refusal::NotOpen);
        };
        if let Stage::Moved(moved) = &mut flow.stage
            && !matches!(moved.phase, Phase::Open)
        {
            return refuse(next, Refusal::NotOpen);
        }
        if let Some(channel) = flow.channel()
            && channel.is_open()
        {
            return channel
                .resume(next)
                .or_else(|next| refuse(next, Refusal::WrongState));
        }
        let Some(base) = flow.base else {
            return refuse(next, Refusal::NotOpen);
        };
        let next = if flow.is_paused() {
            flow.steer(next)
        } else {
            next
        };
        self.base.resume(base, next)
    }

    fn close(&mut self, link: LinkId, flush: bool) {
        let Some(flow) = self.flows.find(link) else {
            return;
        };
        if let Stage::Moved(moved) = &mut flow.stage {
            moved.close(flush);
        }
        if let Some(base) = flow.base {
            self.base.close(base, flush);
        }
    }

    fn turn(&mut self, now: Time, handler: &mut dyn LinkHandler<T::Accepted>) -> usize {
        self.now = now;
        self.listen_around(now);
        while let Some((link, note)) = self.notes.pop_front() {
            match note {
                Note::Moved => handler.moved(link, MEDIUM),
                Note::Stayed(reason) => handler.stayed(link, &reason),
            }
        }
        let mut events = self.advance_moved(now, handler);
        if events > 0 {
            self.stirred = Some(now);
        }
        if events < EVENTS_ENOUGH && self.is_turn_of_base(now) {
            let mut tap = Tap {
                flows: &mut self.flows,
                by_base: &mut self.by_base,
                handler,
                events: 0,
            };
            self.base.turn(now, &mut tap);
            events += tap.events;
        }
        events
    }

    fn frames_in_flight(&self) -> usize {
        self.base.frames_in_flight() + self.frames_in_flight
    }

    fn offer(&mut self, link: LinkId) -> Option<Vec<u8>> {
        let medium = self.medium.as_ref()?;
        let flow = self.flows.find(link)?;
        let secret = match flow.stage {
            Stage::Base => offer::secret(),
            Stage::Offered { secret } => secret,
            Stage::Asked { .. } | Stage::Welcomed(_) | Stage::Moved(_) => return None,
        };
        flow.stage = Stage::Offered { secret };
        let offer = Offer {
            host: medium.host,
            token: offer::token(link, secret),
            door: medium.door.name().to_vec(),
        };
        Some(offer.encode())
    }

    fn upgrade(&mut self, link: LinkId, offer: &[u8]) {
        self.ask(link, offer);
    }
}

impl<T: Park> fmt::Debug for Upgrading<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upgrading")
            .field("base", &self.base.name())
            .field("moved", &self.moved.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// Name of what links move to, in `LinkHandler::moved`.
pub const MEDIUM: &str = "shm";

/// How long shared memory counts as busy after an event.
const BUSY_TIME: Duration = Duration::from_micros(50);

/// Turns of which the first medium has one while shared memory is busy.
const TURNS_PER_BASE: u32 = 16;
