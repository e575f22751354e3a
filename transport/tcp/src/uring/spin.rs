//! Input and output without the ring, for links of a loop that spins.
//!
//! An operation in the ring costs more than a plain system call: the kernel polls the socket, puts off work
//! when bytes arrive, and is entered once more to do it. That pays where somebody sleeps or where there are
//! many links to wait for. While the loop spins, the few links that were used last are asked directly, and if they
//! become many, those that have bytes ([`Crowd`]); after some turns in vain they wait in the ring again.

use grpcxx_transport::{CloseReason, LinkHandler, ReadTarget};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::crowd::Crowd;
use super::operation::Flight;
use super::{UringDriver, operation};
use crate::core::{HOT_LINKS_MAX, MISSES_MAX};
use crate::gather::{Gather, Sent};
use crate::link::Link;
use crate::socket::Accepted;

/// What links that are asked directly share.
pub(super) struct Spinning {
    /// Slots of the links that are asked for heads in each turn.
    hot: Vec<u32>,
    pub(super) crowd: Crowd,
    staging: Box<[u8]>,
    gather: Gather,
}

impl Spinning {
    /// Memory for reads of `staging_bytes` bytes; none if the loop does not spin.
    pub(super) fn new(is_busy: bool, staging_bytes: usize) -> rustix::io::Result<Self> {
        // A receive into no memory would look like the end of the stream.
        let staging_bytes = if is_busy { staging_bytes.max(1) } else { 0 };
        Ok(Self {
            hot: Vec::with_capacity(HOT_LINKS_MAX),
            crowd: Crowd::new(is_busy)?,
            // Touched now, so that no round trip pays for the first use.
            staging: vec![1; staging_bytes].into_boxed_slice(),
            gather: Gather::new(),
        })
    }

    /// Whether a link may be asked for heads in each turn.
    fn admit(&mut self, slot: u32) -> bool {
        if self.hot.contains(&slot) {
            return true;
        }
        let has_room = self.hot.len() < HOT_LINKS_MAX && !self.crowd.is_lively();
        if has_room {
            self.hot.push(slot);
        }
        has_room
    }

    /// Lets a link wait in the ring from now on.
    pub(super) fn dismiss(&mut self, slot: u32, link: &mut Link<Flight>) {
        self.hot.retain(|&hot| hot != slot);
        self.crowd.dismiss(link);
    }
}

impl UringDriver {
    /// Receives what is there. `None` if the link shall wait in the ring, else the number of events.
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
        match link.inbound.as_mut()?.target() {
            ReadTarget::Paused => {
                self.spinning.dismiss(slot, link);
                return None;
            }
            ReadTarget::Direct(_) => {}
            ReadTarget::Staging if link.io.place.waits() => {
                link.prepare_to_wait(&mut self.core.apart);
                return Some(0);
            }
            ReadTarget::Staging if self.spinning.admit(slot) => self.spinning.crowd.dismiss(link),
            ReadTarget::Staging => {
                if !self.gather(slot) {
                    return None;
                }
            }
        }
        self.core.queue(slot);
        self.ask(slot, handler)
    }

    /// Asks a link for bytes, which must be open and not be asked by the ring. Returns what
    /// [`Self::receive_at_once`] does.
    fn ask(&mut self, slot: u32, handler: &mut dyn LinkHandler<Accepted>) -> Option<usize> {
        let (_, link) = self.core.links.at(slot)?;
        let stage_bytes = link.stage_bytes_max.min(self.spinning.staging.len());
        let (buffer, is_direct) = match link.inbound.as_mut()?.target() {
            ReadTarget::Paused => return None,
            ReadTarget::Direct(target) => {
                let asked = target.len().min(operation::RECEIVE_BYTES_MAX);
                (&mut target[..asked], true)
            }
            ReadTarget::Staging => (&mut self.spinning.staging[..stage_bytes], false),
        };
        let asked_bytes = buffer.len();
        match rustix::net::recv(&link.socket, buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => link.end(CloseReason::EndOfStream),
            Ok((bytes, _)) => {
                link.io.misses = 0;
                if bytes < asked_bytes {
                    link.io.place.found_the_last();
                }
                return Some(if is_direct {
                    self.core.landed(slot, bytes, handler)
                } else {
                    let staged = &self.spinning.staging[..bytes];
                    self.core.staged(slot, staged, handler)
                });
            }
            Err(Errno::AGAIN) => {
                link.io.place.found_nothing();
                link.io.misses += 1;
                if link.io.misses > MISSES_MAX {
                    link.io.misses = 0;
                    self.spinning.dismiss(slot, link);
                    return None;
                }
            }
            Err(Errno::INTR) => {}
            Err(errno) => link.fail("receive from", errno),
        }
        Some(0)
    }

    /// Adds a link to the crowd, and with it those that are asked in each turn, because they become many. False if
    /// the system refuses.
    fn gather(&mut self, slot: u32) -> bool {
        let (_, link) = self.core.links.at(slot).expect("a link that reads");
        if !self.spinning.crowd.admit(slot, link) {
            return false;
        }
        self.spinning.crowd.liven_up();
        while let Some(slot) = self.spinning.hot.pop() {
            if let Some((_, link)) = self.core.links.at(slot) {
                self.spinning.crowd.admit(slot, link);
            }
        }
        true
    }

    /// Sends what is queued, as far as the socket takes it. `None` if the rest shall wait in the ring, else
    /// the number of events.
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
    pub(super) fn cool(&mut self) {
        while let Some(slot) = self.spinning.hot.pop() {
            if let Some((_, link)) = self.core.links.at(slot)
                && link.phase.reads()
                && !link.io.receiving()
                && !operation::receive(&mut self.ring, slot, link, &mut self.core.apart)
            {
                self.core.queue(slot);
            }
        }
        self.watch_crowd(true);
    }
}
