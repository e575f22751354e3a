//! What the links of a shard share: their sockets, the arena for copies, staging memory and
//! counters.

use std::collections::VecDeque;
use std::time::Duration;

use grpcxx_memory::OwnFd;
use grpcxx_transport::{CloseReason, Frame, Inbound, LinkHandler, LinkId, Refusal, Time};

use crate::bounce::Bounce;
use crate::channel::{Channel, Side};
use crate::link::{Link, Phase};
use crate::loans::Orphan;
use crate::poller::{Poller, READABLE_AT_ONCE, Subject};
use crate::segment::Segment;
use crate::sight::BlindSpots;
use crate::{ShmCounters, ShmOptions};

/// Drives links whose ends have their segment.
#[derive(Debug)]
pub(crate) struct LinkDriver {
    pub(crate) options: ShmOptions,
    pub(crate) poller: Poller,
    pub(crate) counters: ShmCounters,
    pub(crate) frames_in_flight: usize,
    /// Links whose sockets have something to say.
    pub(crate) readable: VecDeque<LinkId>,
    /// Whether a socket has something to say that is not of a link.
    pub(crate) is_other_readable: bool,
    blind_spots: BlindSpots,
    orphans: Vec<Orphan>,
    staging: Box<[u8]>,
    bounce: Bounce,
    polled: Option<Time>,
    turns_since_poll: u32,
}

impl LinkDriver {
    pub(crate) fn open(options: ShmOptions) -> rustix::io::Result<Self> {
        let bounce = Bounce::new(&options);
        Ok(Self {
            options,
            poller: Poller::new()?,
            counters: ShmCounters::default(),
            frames_in_flight: 0,
            readable: VecDeque::with_capacity(READABLE_AT_ONCE),
            is_other_readable: false,
            blind_spots: BlindSpots::default(),
            orphans: Vec::new(),
            staging: vec![0; STAGING_BYTES].into_boxed_slice(),
            bounce,
            polled: None,
            turns_since_poll: 0,
        })
    }

    /// The data path of a link whose ends both have its segment.
    pub(crate) fn channel(
        &self,
        socket: OwnFd,
        segment: Segment,
        side: Side,
        inbound: Option<Inbound>,
    ) -> Channel {
        let manner = (&self.options, &self.blind_spots);
        Channel::new(socket, segment, side, inbound, manner)
    }

    /// Whether a link takes one more frame.
    pub(crate) fn check_room(&self, link: &Link) -> Result<(), Refusal> {
        match link {
            Link {
                phase: Phase::Open,
                channel: Some(channel),
            } if channel.queued_frames() < self.options.limits.queued_frames => Ok(()),
            Link {
                phase: Phase::Open,
                channel: Some(_),
            } => Err(Refusal::Full),
            _ => Err(Refusal::NotOpen),
        }
    }

    /// Queues a frame on a link that has a channel.
    pub(crate) fn push(&mut self, link: &mut Link, frame: Box<Frame>) {
        if let Some(channel) = &mut link.channel {
            channel.push(frame, &mut self.bounce, &mut self.counters);
            self.frames_in_flight += 1;
        }
    }

    /// Asks the kernel which sockets have something to say, for so long; `None` is without end.
    pub(crate) fn poll(&mut self, timeout: Option<Duration>) -> rustix::io::Result<()> {
        let (readable, is_other_readable) = (&mut self.readable, &mut self.is_other_readable);
        self.turns_since_poll = 0;
        self.poller.poll(timeout, |subject| match subject {
            Subject::Link(id) => readable.push_back(id),
            Subject::Other => *is_other_readable = true,
        })
    }

    /// Looks at the sockets without waiting. Returns whether any has something to say.
    pub(crate) fn look(&mut self) -> bool {
        if let Err(errno) = self.poll(Some(Duration::ZERO)) {
            unreachable!("epoll_wait on a descriptor of our own: {errno}");
        }
        self.has_readable()
    }

    /// Looks at the sockets if it is time. Returns whether it was.
    pub(crate) fn look_if_due(&mut self, now: Time) -> bool {
        self.turns_since_poll += 1;
        let is_due = (self.polled).is_none_or(|polled| now.since(polled) >= POLL_INTERVAL);
        if !is_due && self.turns_since_poll < TURNS_PER_POLL {
            return false;
        }
        self.polled = Some(now);
        self.look();
        true
    }

    /// Lets the next turn look at the sockets.
    pub(crate) fn look_soon(&mut self) {
        self.polled = None;
    }

    /// Whether a socket had something to say that nobody has dealt with.
    pub(crate) fn has_readable(&self) -> bool {
        self.is_other_readable || !self.readable.is_empty()
    }

    /// The next of the `left` links whose sockets had something to say when this turn began. One
    /// that has more than one look takes is put behind them, for the next turn.
    pub(crate) fn take_readable(&mut self, left: &mut usize) -> Option<LinkId> {
        *left = left.checked_sub(1)?;
        self.readable.pop_front()
    }

    /// How many links are gone whose peers still have memory of this process, and how many bytes.
    pub(crate) fn orphaned(&mut self) -> (usize, usize) {
        // Who gives something back tells nobody.
        self.settle_orphans();
        let bytes = self.orphans.iter().map(Orphan::lent_bytes).sum();
        (self.orphans.len(), bytes)
    }

    /// Deals with sockets of links that are gone. Returns whether sockets that are not of links had
    /// something to say.
    pub(crate) fn take_others(&mut self) -> bool {
        if !std::mem::take(&mut self.is_other_readable) {
            return false;
        }
        self.settle_orphans();
        true
    }

    fn settle_orphans(&mut self) {
        self.orphans.retain_mut(|orphan| !orphan.is_settled());
        self.is_other_readable |= self.orphans.iter().any(Orphan::has_unheard);
    }

    /// Does what the state of one link asks for. Returns the number of events, and whether the link
    /// has ended and is to be given to [`LinkDriver::finish`].
    pub(crate) fn advance<A>(
        &mut self,
        id: LinkId,
        link: &mut Link,
        now: Time,
        handler: &mut dyn LinkHandler<A>,
    ) -> (usize, bool) {
        let frames = link.queued_frames();
        let events = link.advance(
            id,
            now,
            &mut self.staging,
            handler,
            &mut self.bounce,
            &mut self.counters,
        );
        self.frames_in_flight -= frames - link.queued_frames();
        let has_ended = events == 0 && matches!(link.phase, Phase::Ended(_));
        (events, has_ended)
    }

    /// Reports all that follows from the end of a link, but for the end itself. Returns the number
    /// of events and the reason.
    pub(crate) fn finish<A>(
        &mut self,
        id: LinkId,
        link: Link,
        handler: &mut dyn LinkHandler<A>,
    ) -> (usize, CloseReason) {
        self.frames_in_flight -= link.queued_frames();
        let Phase::Ended(reason) = link.phase else {
            unreachable!("only links that have ended are removed");
        };
        let Some(channel) = link.channel else {
            return (0, reason);
        };
        self.poller.forget(channel.socket());
        let (events, orphan) = channel.finish(id, &reason, handler);
        if let Some(orphan) = orphan {
            // Its end is told by the socket.
            let _ = self.poller.watch(orphan.socket(), Subject::Other);
            self.orphans.push(orphan);
            self.is_other_readable = true;
        }
        (events, reason)
    }

    /// Gives back memory that only links need.
    pub(crate) fn release_memory(&mut self) {
        self.bounce.release();
    }
}

/// Bytes shown to a handler at a time.
const STAGING_BYTES: usize = 16 << 10;

/// A turn that has had this many events begins nothing more.
pub(crate) const EVENTS_ENOUGH: usize = 1024;

/// How often links that close are looked at during sleep.
pub(crate) const CLOSING_CHECK: Duration = Duration::from_millis(1);

/// How often sockets are looked at while the loop turns: rings need them only for sleep and for the
/// end.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// Turns between two looks at sockets, for clocks that stand still.
const TURNS_PER_POLL: u32 = 1024;
