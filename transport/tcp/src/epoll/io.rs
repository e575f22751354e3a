use grpcxx_transport::{CloseReason, LinkHandler, ReadTarget};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::hot::Asking;
use crate::core::{Core, EVENTS_PER_LINK, RECEIVES_MAX};
use crate::gather::{Gather, Sent};
use crate::link::Link;
use crate::socket::Accepted;

/// What epoll has told about a link and no system call has disproved since.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Readiness {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The stream has an end: reads go on until they find it, since no further edge will tell.
    pub(crate) ended: bool,
    /// How often in a row the link was asked while it was hot, and had no bytes.
    pub(crate) misses: u32,
    /// How often it had some since it became hot.
    pub(crate) hits: u32,
    /// Epoll tells of it only that it is over.
    pub(crate) is_disarmed: bool,
}

/// What the system calls of all links share: memory that one of them uses at a time, and which
/// links are hot.
#[derive(Debug)]
pub(crate) struct Staging {
    bytes: Box<[u8]>,
    gather: Gather,
    pub(super) asking: Asking,
}

impl Staging {
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            bytes: vec![0; bytes.max(STAGING_BYTES_MIN)].into_boxed_slice(),
            gather: Gather::new(),
            asking: Asking::new(),
        }
    }

    /// Sends what a link has, as far as the socket takes it now.
    pub(super) fn send(
        &mut self,
        link: &Link<Readiness>,
        bytes_max: usize,
    ) -> rustix::io::Result<Sent> {
        (self.gather).send(&link.socket, &link.outbound, bytes_max)
    }

    /// Sends what is queued, as far as the socket takes it and the turn allows. Returns the number
    /// of events.
    pub(crate) fn write(
        &mut self,
        core: &mut Core<Readiness>,
        slot: u32,
        handler: &mut dyn LinkHandler<Accepted>,
    ) -> usize {
        let mut events = 0;
        let mut budget_bytes = SEND_BYTES_MAX;
        while let Some((_, link)) = core.links.at(slot) {
            if !link.io.writable || !link.sends() {
                break;
            }
            if budget_bytes == 0 || events >= EVENTS_PER_LINK {
                core.queue(slot);
                break;
            }
            match self.send(link, budget_bytes) {
                Ok(Sent { bytes, is_all }) => {
                    link.io.writable = is_all;
                    budget_bytes -= bytes;
                    events += core.sent(slot, bytes, handler);
                }
                Err(Errno::AGAIN) => link.io.writable = false,
                Err(Errno::INTR) => {}
                Err(errno) => link.fail("send to", errno),
            }
        }
        events
    }

    /// Receives what is there, as far as the link's orders and the turn allow. Returns the number
    /// of events.
    pub(crate) fn read(
        &mut self,
        core: &mut Core<Readiness>,
        slot: u32,
        handler: &mut dyn LinkHandler<Accepted>,
    ) -> usize {
        let mut events = 0;
        let mut budget_bytes = RECEIVE_BYTES_MAX;
        for _ in 0..RECEIVES_MAX {
            let Some((id, link)) = core.links.at(slot) else {
                return events;
            };
            let Some(inbound) = link.inbound.as_mut().filter(|_| link.phase.reads()) else {
                return events;
            };
            if std::mem::take(&mut link.resumed) {
                events += inbound.offer(id, &[], handler);
            }
            if !link.io.readable {
                link.prepare_to_wait(&mut core.cpu_sharing);
                return events;
            }
            let Some(inbound) = link.inbound.as_mut() else {
                return events;
            };
            let (buffer, is_direct, limit) = match inbound.target() {
                ReadTarget::Paused => return events,
                ReadTarget::Direct(target) => (target, true, usize::MAX),
                ReadTarget::Staging => (&mut *self.bytes, false, link.stage_bytes_max),
            };
            let asked = buffer.len().min(budget_bytes).min(limit);
            let buffer = &mut buffer[..asked];
            match rustix::net::recv(&link.socket, buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) => link.end(CloseReason::EndOfStream),
                Ok((bytes, _)) => {
                    link.io.readable = bytes == asked || link.io.ended;
                    link.io.misses = 0;
                    budget_bytes -= bytes;
                    if core.options.busy && !is_direct && !link.is_hot {
                        link.is_hot = self.asking.admit(slot);
                    }
                    events += if is_direct {
                        core.landed(slot, bytes, handler)
                    } else {
                        core.staged(slot, &self.bytes[..bytes], handler)
                    };
                }
                Err(Errno::AGAIN) => link.io.readable = false,
                Err(Errno::INTR) => {}
                Err(errno) => link.fail("receive from", errno),
            }
            if budget_bytes == 0 || events >= EVENTS_PER_LINK {
                break;
            }
        }
        core.queue(slot);
        events
    }
}

/// Bytes that one link sends in one turn.
pub(super) const SEND_BYTES_MAX: usize = 1 << 20;

/// Bytes that one link receives in one turn.
const RECEIVE_BYTES_MAX: usize = 1 << 20;

/// Staging memory cannot be smaller.
const STAGING_BYTES_MIN: usize = 4096;
