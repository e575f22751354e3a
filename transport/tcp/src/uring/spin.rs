//! Input and output without the ring, for links of a loop that spins.
//!
//! An operation in the ring costs more than a plain system call: the kernel polls the socket, puts
//! off work when bytes arrive, and is entered once more to do it. That pays where somebody sleeps
//! or where there are many links to wait for. While the loop spins, the links that were used last
//! are asked directly ([`HotSet`]), and if they become many, those that have bytes ([`ReadySet`]);
//! after some turns in vain they wait in the ring again.

use grpcxx_transport::{CloseReason, Inbound, LinkHandler, ReadTarget};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::operation::Flight;
use super::ready_set::ReadySet;
use super::{UringDriver, operation};
use crate::core::{EVENTS_ENOUGH, EVENTS_PER_LINK, RECEIVES_MAX};
use crate::gather::{Gather, Sent};
use crate::hot_set::{ASKED_MIN, HotSet, MISSES_MAX};
use crate::link::Link;
use crate::socket::Accepted;

/// What links that are asked directly share.
pub(super) struct Spinning {
    hot: HotSet,
    pub(super) ready_set: ReadySet,
    staging: Box<[u8]>,
    gather: Gather,
}

impl Spinning {
    /// Memory for reads of `staging_bytes` bytes; none if the loop does not spin.
    pub(super) fn new(is_busy: bool, staging_bytes: usize) -> rustix::io::Result<Self> {
        // A receive into no memory would look like the end of the stream.
        let staging_bytes = if is_busy { staging_bytes.max(1) } else { 0 };
        Ok(Self {
            hot: HotSet::new(),
            ready_set: ReadySet::new(is_busy)?,
            // Touched now, so that no round trip pays for the first use.
            staging: vec![1; staging_bytes].into_boxed_slice(),
            gather: Gather::new(),
        })
    }

    /// Whether a link that is not hot is asked for heads from now on, and no longer when epoll
    /// names it.
    fn admit(&mut self, slot: u32, link: &mut Link<Flight>) -> bool {
        link.is_hot = !self.ready_set.is_lively() && self.hot.admit(slot);
        if link.is_hot {
            self.ready_set.dismiss(link);
        }
        link.is_hot
    }

    /// Lets a link wait in the ring from now on.
    pub(super) fn dismiss(&mut self, slot: u32, link: &mut Link<Flight>) {
        if std::mem::take(&mut link.is_hot) {
            self.hot.dismiss(slot);
        }
        self.ready_set.dismiss(link);
    }
}

/// What became of asking a link for bytes.
enum Asked {
    /// It had some, or its end, which made so many events, and may have more.
    Found {
        events: usize,
        has_more: bool,
    },
    Missed,
    /// It has had none too often, and shall wait in the ring.
    Dismissed,
}

impl UringDriver {
    /// Receives what is there. `None` if the link shall wait in the ring, else the number of
    /// events.
    pub(super) fn receive_at_once(
        &mut self,
        slot: u32,
        handler: &mut dyn LinkHandler<Accepted>,
    ) -> Option<usize> {
        if !self.core.options.busy {
            return None;
        }
        let (_, link) = self.core.links.at(slot)?;
        if link.io.receiving() || !link.phase.reads() {
            return None;
        }
        let wants_heads = match link.inbound.as_mut()?.target() {
            ReadTarget::Paused => {
                self.spinning.dismiss(slot, link);
                return None;
            }
            ReadTarget::Direct(_) => false,
            ReadTarget::Staging => true,
        };
        if wants_heads {
            if link.io.membership.waits() {
                link.prepare_to_wait(&mut self.core.cpu_sharing);
                return Some(0);
            }
            if link.is_hot {
                return Some(0);
            }
            if !self.spinning.admit(slot, link) && !self.gather(slot) {
                return None;
            }
        }
        self.core.queue(slot);
        match self.ask_on(slot, handler) {
            Asked::Found { events, .. } => Some(events),
            Asked::Missed => Some(0),
            Asked::Dismissed => None,
        }
    }

    /// Asks hot links for heads. Returns the number of events, with those that there were before.
    pub(super) fn ask_hot(
        &mut self,
        mut events: usize,
        handler: &mut dyn LinkHandler<Accepted>,
    ) -> usize {
        self.spinning.hot.begin_walk();
        let mut asked = 0;
        while (events < EVENTS_ENOUGH || asked < ASKED_MIN)
            && let Some(slot) = self.spinning.hot.next()
        {
            if !self.wants_heads(slot) {
                continue;
            }
            asked += 1;
            match self.ask_on(slot, handler) {
                Asked::Found { events: found, .. } => {
                    events += found;
                    if self.wants_heads(slot) {
                        self.spinning.hot.found(slot);
                    }
                }
                Asked::Missed => self.spinning.hot.missed(slot),
                Asked::Dismissed => self.wait_in_ring(slot),
            }
        }
        self.spinning.hot.end_walk();
        events
    }

    /// Whether a hot link wants heads. Otherwise it is hot no more, and on the work list.
    fn wants_heads(&mut self, slot: u32) -> bool {
        let Some((_, link)) = self.core.links.at(slot) else {
            return false;
        };
        let target = link.inbound.as_mut().map(Inbound::target);
        link.is_hot &= link.phase.reads() && matches!(target, Some(ReadTarget::Staging));
        let is_hot = link.is_hot;
        if !is_hot {
            self.core.queue(slot);
        }
        is_hot
    }

    /// Lets a link that was hot wait in the ring.
    fn wait_in_ring(&mut self, slot: u32) {
        let Some((_, link)) = self.core.links.at(slot) else {
            return;
        };
        link.is_hot = false;
        if link.phase.reads()
            && !link.io.receiving()
            && !operation::receive(&mut self.ring, slot, link, &mut self.core.cpu_sharing)
        {
            self.core.queue(slot);
        }
    }

    /// Asks a link for bytes as [`UringDriver::ask`] does, and again while it has all that it is
    /// asked for: what comes of payloads that are taken in together leaves together.
    fn ask_on(&mut self, slot: u32, handler: &mut dyn LinkHandler<Accepted>) -> Asked {
        let mut all_events = 0;
        for count in 0..RECEIVES_MAX {
            match self.ask(slot, handler) {
                Asked::Found { events, has_more } => {
                    all_events += events;
                    if !has_more || all_events >= EVENTS_PER_LINK {
                        break;
                    }
                }
                nothing if count == 0 => return nothing,
                Asked::Missed | Asked::Dismissed => break,
            }
        }
        Asked::Found {
            events: all_events,
            has_more: false,
        }
    }

    /// Asks a link for bytes, which must be open and not be asked by the ring.
    fn ask(&mut self, slot: u32, handler: &mut dyn LinkHandler<Accepted>) -> Asked {
        let Some((_, link)) = self.core.links.at(slot) else {
            return Asked::Dismissed;
        };
        let stage_bytes = link.stage_bytes_max.min(self.spinning.staging.len());
        let (buffer, is_direct) = match link.inbound.as_mut().map(Inbound::target) {
            None | Some(ReadTarget::Paused) => return Asked::Dismissed,
            Some(ReadTarget::Direct(target)) => {
                let asked = target.len().min(operation::RECEIVE_BYTES_MAX);
                (&mut target[..asked], true)
            }
            Some(ReadTarget::Staging) => (&mut self.spinning.staging[..stage_bytes], false),
        };
        let asked_bytes = buffer.len();
        match rustix::net::recv(&link.socket, buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => link.end(CloseReason::EndOfStream),
            Ok((bytes, _)) => {
                link.io.misses = 0;
                if bytes < asked_bytes {
                    link.io.membership.found_the_last();
                }
                let events = if is_direct {
                    self.core.landed(slot, bytes, handler)
                } else {
                    let staged = &self.spinning.staging[..bytes];
                    self.core.staged(slot, staged, handler)
                };
                let has_more = bytes == asked_bytes && bytes < operation::RECEIVE_BYTES_MAX;
                return Asked::Found { events, has_more };
            }
            Err(Errno::AGAIN) => {
                link.io.membership.found_nothing();
                link.io.misses += 1;
                if link.io.misses <= MISSES_MAX {
                    return Asked::Missed;
                }
                link.io.misses = 0;
                self.spinning.dismiss(slot, link);
                return Asked::Dismissed;
            }
            Err(Errno::INTR) => {}
            Err(errno) => link.fail("receive from", errno),
        }
        self.core.queue(slot);
        Asked::Found {
            events: 0,
            has_more: false,
        }
    }

    /// Adds a link to the ready set, and with it those that are hot, because they become many.
    /// False if the system refuses.
    fn gather(&mut self, slot: u32) -> bool {
        let (_, link) = self.core.links.at(slot).expect("a link that reads");
        if !self.spinning.ready_set.admit(slot, link) {
            return false;
        }
        self.spinning.ready_set.liven_up();
        while let Some(slot) = self.spinning.hot.pop() {
            if let Some((_, link)) = self.core.links.at(slot) {
                link.is_hot = false;
                self.spinning.ready_set.admit(slot, link);
                self.core.queue(slot);
            }
        }
        true
    }

    /// Sends what is queued, as far as the socket takes it. `None` if the rest shall wait in the
    /// ring, else the number of events.
    pub(super) fn send_at_once(
        &mut self,
        slot: u32,
        handler: &mut dyn LinkHandler<Accepted>,
    ) -> Option<usize> {
        if !self.core.options.busy {
            return None;
        }
        let (_, link) = self.core.links.at(slot)?;
        let gather = &mut self.spinning.gather;
        let sent = gather.send(&link.socket, &link.outbound, operation::SEND_BYTES_MAX);
        match sent {
            Ok(Sent { bytes, .. }) => {
                link.io.full = 0;
                Some(self.core.sent(slot, bytes, handler))
            }
            Err(Errno::AGAIN) if link.io.full < MISSES_MAX => {
                link.io.full += 1;
                Some(0)
            }
            Err(Errno::AGAIN) => {
                link.io.full = 0;
                None
            }
            Err(Errno::INTR) => Some(0),
            Err(errno) => {
                link.fail("send to", errno);
                Some(0)
            }
        }
    }

    /// Lets all links wait in the ring, because the loop goes to sleep.
    pub(super) fn deactivate(&mut self) {
        while let Some(slot) = self.spinning.hot.pop() {
            self.wait_in_ring(slot);
        }
        self.watch_crowd(true);
    }
}
