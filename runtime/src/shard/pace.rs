//! Whether peers go on with what they have begun, and whether connections are still used.
//!
//! A shard looks at its connections a few times in each period instead of keeping a timer for each
//! frame. Time counts only from one look to the next, and only while the link asks its peer for
//! bytes: a process that was stopped, or a link that this side has paused, blames no peer.

use std::time::Duration;

use grpcxx_rpc::PeerViolation;
use grpcxx_transport::{LinkId, Reading, Time, Transport};

use crate::command::{Command, SlotId};
use crate::shard::core::Core;
use crate::shard::leaving::Why;
use crate::shard::links::Owner;

/// How long peers may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Patience {
    /// Time within which a frame that has begun must end or bring [`Patience::progress_bytes`];
    /// `None`: as long as it likes.
    pub progress: Option<Duration>,
    /// Fewest bytes of a frame in that time.
    pub progress_bytes: u64,
    /// How long a connection from a peer may carry nothing; `None`: for ever, as originals need.
    pub idle: Option<Duration>,
    /// How old a connection from a peer may become before it is closed between two requests;
    /// `None`: as old as it likes.
    pub age: Option<Duration>,
    /// How long a request may wait for tensors of a step before the log says, once for the step,
    /// who waits for what; `None`: as long as it likes.
    pub step_wait: Option<Duration>,
}

impl Patience {
    /// This patience with what `change` sets; fields that it leaves alone keep their values.
    ///
    /// ```
    /// use grpcxx_runtime::Patience;
    ///
    /// let patience = Patience::default().with(|patience| patience.progress_bytes = 1024);
    /// assert_eq!(patience.progress_bytes, 1024);
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// When a shard looks at its connections.
#[derive(Debug)]
pub(super) struct Looks {
    patience: Patience,
    every: Option<Duration>,
    next: Time,
    /// Refusals of the arena that are counted.
    refusals_counted: u64,
}

/// What was seen of a connection at the last look.
#[derive(Debug, Default)]
pub(super) struct Pace {
    first_look: Option<Time>,
    last_look: Time,
    used_at: Time,
    frames: u64,
    taken_bytes: u64,
    /// Looks in a row at which the same frame had not brought enough.
    in_vain: u32,
}

/// What is seen of a connection.
#[derive(Clone, Copy, Debug)]
struct Sight {
    reading: Reading,
    /// Frames that have begun.
    frames: u64,
    is_within_frame: bool,
    /// Whether it may be closed for want of use: it is a peer's, and owes it nothing.
    is_unused: bool,
}

/// Why a connection is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    TooSlow { found_bytes: u64 },
    Idle,
    Old,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            progress: Some(Duration::from_secs(30)),
            progress_bytes: 64 << 10,
            idle: None,
            age: None,
            step_wait: Some(Duration::from_secs(60)),
        }
    }
}

impl Looks {
    pub(super) fn new(patience: Patience) -> Self {
        let shortest = [
            patience.progress,
            patience.idle,
            patience.age,
            patience.step_wait,
        ];
        let every = shortest.into_iter().flatten().min();
        Self {
            patience,
            every: every.map(|period| (period / LOOKS_PER_PERIOD).max(LOOK_TIME_MIN)),
            next: Time::ZERO,
            refusals_counted: 0,
        }
    }

    /// When the shard looks next, if ever.
    pub(super) fn next(&self) -> Option<Time> {
        self.every.map(|_| self.next)
    }

    fn begin(&mut self, now: Time) -> bool {
        match self.every {
            Some(every) if now >= self.next => {
                self.next = now + every;
                true
            }
            Some(_) | None => false,
        }
    }

    /// Looks in vain after which a frame is too slow.
    fn in_vain_max(&self) -> Option<u32> {
        let (progress, every) = (self.patience.progress?, self.every?);
        let looks = progress.as_nanos().div_ceil(every.as_nanos());
        Some(u32::try_from(looks).unwrap_or(u32::MAX))
    }
}

impl Pace {
    /// Since when a connection on which so many frames have begun is not in use, if the last look
    /// saw nothing of it, and nothing has begun since.
    pub(super) fn idle_since(&self, frames: u64) -> Option<Time> {
        (self.last_look > self.used_at && frames == self.frames).then_some(self.used_at)
    }

    fn look(&mut self, sight: Sight, looks: &Looks, now: Time) -> Option<Verdict> {
        let first_look = *self.first_look.get_or_insert(now);
        self.last_look = now;
        let Sight {
            reading, frames, ..
        } = sight;
        let is_begun = sight.is_within_frame || reading.is_begun;
        // A link that has moved counts its bytes anew.
        let brought = reading.taken_bytes.checked_sub(self.taken_bytes);
        if first_look == now || frames != self.frames || brought != Some(0) || !sight.is_unused {
            self.used_at = now;
        }
        let bytes_min = looks.patience.progress_bytes.max(1);
        let is_slow = is_begun && reading.asks && frames == self.frames && first_look != now;
        match brought {
            Some(found_bytes) if is_slow && found_bytes < bytes_min => {
                self.in_vain = self.in_vain.saturating_add(1);
                if looks.in_vain_max().is_some_and(|most| self.in_vain >= most) {
                    return Some(Verdict::TooSlow { found_bytes });
                }
            }
            Some(_) | None => {
                (self.frames, self.taken_bytes) = (frames, reading.taken_bytes);
                self.in_vain = 0;
            }
        }
        if !sight.is_unused {
            return None;
        }
        let is_over =
            |since: Time, most: Option<Duration>| most.is_some_and(|most| now.since(since) >= most);
        if is_over(self.used_at, looks.patience.idle) {
            return Some(Verdict::Idle);
        }
        is_over(first_look, looks.patience.age).then_some(Verdict::Old)
    }
}

impl<A> Core<A> {
    /// Closes connections whose peers do not go on with what they have begun, or that nobody uses.
    pub(super) fn look_at_peers<T: Transport<Accepted = A>>(&mut self, transport: &mut T) {
        if !self.looks.begin(self.now) {
            return;
        }
        self.count_refusals();
        self.look_at_steps();
        for slot in 0..self.links.slots() {
            let Some((link, owner)) = self.links.at(slot) else {
                continue;
            };
            let Some(reading) = transport.reading(link) else {
                continue;
            };
            let verdict = match owner {
                Owner::Server(id) => self.look_at_server(id, reading),
                Owner::Peer(slot) => self.look_at_peer(slot, reading),
                // It has a limit of its own.
                Owner::Leaving(_) => None,
            };
            if let Some(verdict) = verdict {
                self.carry_out(link, verdict);
            }
        }
    }

    /// Says who has waited long, where each connection is.
    fn look_at_steps(&mut self) {
        let Some(step_wait) = self.looks.patience.step_wait else {
            return;
        };
        for late in self.steps.late(self.now, step_wait) {
            self.route(late.origin.shard(), Command::WaitsLong(late));
        }
    }

    fn look_at_server(&mut self, id: SlotId, reading: Reading) -> Option<Verdict> {
        let server = self.incoming.servers.find_mut(id)?;
        let sight = Sight {
            reading,
            frames: server.connection.frames(),
            is_within_frame: server.connection.is_within_frame(),
            is_unused: !server.is_in_use() && !reading.is_begun,
        };
        server.pace.look(sight, &self.looks, self.now)
    }

    fn look_at_peer(&mut self, slot: usize, reading: Reading) -> Option<Verdict> {
        let (connection, pace) = self.outgoing.peers[slot].connection_and_pace()?;
        let sight = Sight {
            reading,
            frames: connection.frames(),
            is_within_frame: connection.is_within_frame(),
            is_unused: false,
        };
        pace.look(sight, &self.looks, self.now)
    }

    fn carry_out(&mut self, link: LinkId, verdict: Verdict) {
        match verdict {
            Verdict::TooSlow { found_bytes } => {
                self.counters().too_slow.add(1);
                let Patience {
                    progress,
                    progress_bytes,
                    ..
                } = self.looks.patience;
                let violation = PeerViolation::TooSlow {
                    found_bytes,
                    allowed_min: progress_bytes,
                    period: progress.unwrap_or_default(),
                };
                return self.condemn(link, violation);
            }
            Verdict::Idle => tracing::debug!("closing the connection of a peer that is idle"),
            Verdict::Old => tracing::debug!("closing the connection of a peer that is old"),
        }
        self.counters().unused_closed.add(1);
        self.depart(link, Why::Asked);
    }

    /// Brings the counter of refusals by the arena up to date.
    fn count_refusals(&mut self) {
        let refusals = self.arena.statistics().failed_allocations;
        let before = std::mem::replace(&mut self.looks.refusals_counted, refusals);
        self.counters().memory_refused.add(refusals - before);
    }
}

/// Looks in the shortest of the periods.
const LOOKS_PER_PERIOD: u32 = 4;

/// Shortest time between two looks.
const LOOK_TIME_MIN: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn sight(taken_bytes: u64, frames: u64, is_within_frame: bool) -> Sight {
        Sight {
            reading: Reading {
                taken_bytes,
                is_begun: false,
                asks: true,
            },
            frames,
            is_within_frame,
            is_unused: !is_within_frame,
        }
    }

    /// Looks at what is seen, one look after the other; the index of the verdict, and the verdict.
    fn judge(patience: Patience, sights: &[Sight]) -> Option<(usize, Verdict)> {
        let mut looks = Looks::new(patience);
        let (mut pace, mut now) = (Pace::default(), Time::from_nanos(1));
        for (index, sight) in sights.iter().enumerate() {
            assert!(looks.begin(now));
            assert!(!looks.begin(now));
            if let Some(verdict) = pace.look(*sight, &looks, now) {
                return Some((index, verdict));
            }
            now = looks.next().expect("it looks");
        }
        None
    }

    fn patience() -> Patience {
        Patience {
            progress_bytes: 100,
            ..Patience::default()
        }
    }

    #[test]
    fn a_frame_that_brings_too_little_is_too_slow_after_its_period() {
        let too_slow = |found_bytes| Some((4, Verdict::TooSlow { found_bytes }));
        assert_eq!(judge(patience(), &[sight(32, 1, true); 9]), too_slow(0));
        let crawl: Vec<Sight> = (0..9).map(|look| sight(32 + look, 1, true)).collect();
        assert_eq!(judge(patience(), &crawl), too_slow(4));
        let half_a_head = Sight {
            reading: Reading {
                taken_bytes: 16,
                is_begun: true,
                asks: true,
            },
            ..sight(16, 0, false)
        };
        assert_eq!(judge(patience(), &[half_a_head; 9]), too_slow(0));
    }

    #[test]
    fn whoever_goes_on_or_is_not_asked_is_not_too_slow() {
        let steady: Vec<Sight> = (0..99).map(|look| sight(30 * look, 1, true)).collect();
        assert_eq!(judge(patience(), &steady), None);
        let frames: Vec<Sight> = (0..99).map(|look| sight(look, look, true)).collect();
        assert_eq!(judge(patience(), &frames), None);
        assert_eq!(judge(patience(), &[sight(0, 0, false); 99]), None);
        let mut paused = sight(32, 1, true);
        paused.reading.asks = false;
        assert_eq!(judge(patience(), &[paused; 99]), None);
        let never = Patience {
            progress: None,
            idle: Some(Duration::from_secs(1)),
            ..patience()
        };
        assert_eq!(judge(never, &[sight(32, 1, true); 99]), None);
    }

    #[test]
    fn a_frame_may_take_its_period_again_after_it_has_brought_enough() {
        let mut sights = vec![sight(32, 1, true); 4];
        sights.extend([sight(200, 1, true); 4]);
        assert_eq!(judge(patience(), &sights), None);
        sights.push(sight(200, 1, true));
        let verdict = Verdict::TooSlow { found_bytes: 0 };
        assert_eq!(judge(patience(), &sights), Some((8, verdict)));
    }

    #[test]
    fn connections_that_are_idle_or_old_are_closed_if_that_is_asked_for() {
        let idle = Patience {
            idle: Some(Duration::from_secs(4)),
            ..Patience::default()
        };
        let sights = [sight(0, 0, false); 9];
        assert_eq!(judge(idle, &sights), Some((4, Verdict::Idle)));
        let used: Vec<Sight> = (0..99).map(|look| sight(look, look, false)).collect();
        assert_eq!(judge(idle, &used), None);
        let old = Patience {
            age: Some(Duration::from_secs(4)),
            ..Patience::default()
        };
        assert_eq!(judge(old, &used), Some((4, Verdict::Old)));
    }
}
