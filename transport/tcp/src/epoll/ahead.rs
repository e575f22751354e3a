//! Frames that leave between two turns, so that whoever hands one over need not turn for that. The
//! next turn tells of them.

use std::collections::VecDeque;

use grpcxx_transport::{Frame, LinkHandler, LinkId, Outcome};
use rustix::io::Errno;

use super::io::{Readiness, SEND_BYTES_MAX, Staging};
use crate::core::{Core, EVENTS_ENOUGH};
use crate::gather::Sent;
use crate::link::Link;
use crate::socket::Accepted;

/// What has left since the last turn.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    untold: VecDeque<(LinkId, Box<Frame>)>,
    /// Links that the last turn has left on the work list.
    left_over: usize,
}

impl Ahead {
    /// Begins a turn. Returns the number of events.
    pub(super) fn tell(
        &mut self,
        core: &mut Core<Readiness>,
        handler: &mut dyn LinkHandler<Accepted>,
    ) -> usize {
        let told = self.untold.len();
        for (id, frame) in self.untold.drain(..) {
            handler.sent(id, frame, Outcome::Done);
        }
        core.frames_in_flight -= told;
        told
    }

    /// Whether the next turn has something to tell.
    pub(super) fn is_empty(&self) -> bool {
        self.untold.is_empty()
    }

    /// Ends a turn.
    pub(super) fn end_turn(&mut self, core: &Core<Readiness>) {
        self.left_over = core.work.len();
    }

    /// Sends for the links that were put on the work list since the last turn, and takes those off
    /// it that have nothing else to do.
    pub(super) fn write(&mut self, core: &mut Core<Readiness>, staging: &mut Staging) {
        let (first, end) = (self.left_over.min(core.work.len()), core.work.len());
        let mut kept = first;
        for index in first..end {
            let slot = core.work[index];
            if self.write_link(core, slot, staging) {
                core.work[kept] = slot;
                kept += 1;
            }
        }
        core.work.truncate(kept);
    }

    /// Sends what one link has, within the bounds of a turn. Returns whether it needs a turn.
    fn write_link(&mut self, core: &mut Core<Readiness>, slot: u32, staging: &mut Staging) -> bool {
        let Some((id, link)) = core.links.at(slot).filter(|(_, link)| link.is_open()) else {
            return true;
        };
        let mut budget_bytes = SEND_BYTES_MAX;
        while link.io.writable && link.sends() {
            if budget_bytes == 0 || self.untold.len() >= EVENTS_ENOUGH {
                return true;
            }
            let Sent { bytes, is_all } = match staging.send(link, budget_bytes) {
                Ok(sent) => sent,
                Err(Errno::AGAIN) => Sent::NOTHING,
                // A turn meets it again, and tells.
                Err(_) => return true,
            };
            link.io.writable = is_all;
            budget_bytes -= bytes;
            core.counters.sends += u64::from(bytes > 0);
            core.counters.sent_bytes += bytes as u64;
            let untold = &mut self.untold;
            (link.outbound).advance(bytes, |frame| untold.push_back((id, frame)));
        }
        link.queued = needs_turn(link);
        link.queued
    }
}

/// Whether a link that has sent what it could needs a turn, though the system tells nothing new.
fn needs_turn(link: &Link<Readiness>) -> bool {
    let is_deaf = link.io.is_disarmed && !link.io.writable;
    link.resumed || link.io.readable || is_deaf
}
