//! What a turn does for one link.

use super::super::SimAccepted;
use super::super::connection::{Interest, SideState};
use super::super::network::error;
use super::super::pipe::End;
use super::{Link, Phase, SimTransport};
use crate::{CloseReason, Inbound, LinkHandler, LinkId, Outcome, ReadTarget, Time};

impl SimTransport {
    /// Does for one link what is to be done. Returns the number of events, and whether the link is
    /// gone.
    pub(super) fn work(
        &mut self,
        id: LinkId,
        link: &mut Link,
        is_up: bool,
        handler: &mut dyn LinkHandler<SimAccepted>,
    ) -> (usize, bool) {
        if !is_up {
            let crash = error("use a link", 0, "the host has crashed");
            return self.finish(id, link, &CloseReason::Failed(crash), handler);
        }
        let state = self
            .network
            .state()
            .side_state(link.connection, link.side)
            .clone();
        match (link.phase, state) {
            (Phase::Closing, _) => self.finish(id, link, &CloseReason::Local, handler),
            (_, SideState::Failed(error)) => {
                self.finish(id, link, &CloseReason::Failed(error), handler)
            }
            (Phase::Dialling, SideState::Dialling) => (0, false),
            (Phase::Dialling, _) => {
                link.phase = Phase::Open;
                link.inbound = Some(Inbound::new(handler.connected(id)));
                link.offer_due = true;
                (1, false)
            }
            (Phase::Open, _) => self.work_open(id, link, handler),
            (
                Phase::Finishing {
                    is_landing_back,
                    ends,
                },
                _,
            ) => self.work_finishing(id, link, is_landing_back, ends, handler),
            (Phase::Flushing { until }, _) => self.work_flushing(id, link, until, handler),
        }
    }

    fn work_open(
        &mut self,
        id: LinkId,
        link: &mut Link,
        handler: &mut dyn LinkHandler<SimAccepted>,
    ) -> (usize, bool) {
        let mut events = self.write(id, link, handler);
        events += self.read(id, link, handler);
        let paused = link.inbound.as_ref().is_some_and(Inbound::is_paused);
        let (end, unread) = {
            let mut state = self.network.state();
            let arrived = state
                .incoming(link.connection, link.side)
                .map_or(0, |pipe| pipe.arrived_bytes());
            (state.end_reached(link.connection, link.side), arrived > 0)
        };
        let reason = match end {
            Some(End::Broken) => {
                CloseReason::Failed(error("use a link", 104, "connection reset by peer"))
            }
            Some(End::OfStream) if !paused && !unread && !link.offer_due => {
                if self.outlasts_streams {
                    link.is_outlasting = true;
                    return (events, false);
                }
                CloseReason::EndOfStream
            }
            Some(End::OfStream) | None => return (events, false),
        };
        let (more, gone) = self.finish(id, link, &reason, handler);
        (events + more, gone)
    }

    fn work_finishing(
        &mut self,
        id: LinkId,
        link: &mut Link,
        is_landing_back: bool,
        ends: bool,
        handler: &mut dyn LinkHandler<SimAccepted>,
    ) -> (usize, bool) {
        let mut events = 0;
        if !is_landing_back && let Some(inbound) = &mut link.inbound {
            events += inbound.forsake_landing(id, handler);
            link.phase = Phase::Finishing {
                is_landing_back: true,
                ends,
            };
        }
        let (more, is_gone) = self.work_open(id, link, handler);
        events += more;
        if is_gone || !link.queue.is_empty() {
            return (events, is_gone);
        }
        (self.network.state()).half_close(link.connection, link.side);
        if !ends || link.inbound.as_ref().is_some_and(Inbound::is_dropping) {
            return (events, false);
        }
        let (more, is_gone) = self.finish(id, link, &CloseReason::Local, handler);
        (events + more, is_gone)
    }

    fn work_flushing(
        &mut self,
        id: LinkId,
        link: &mut Link,
        until: Time,
        handler: &mut dyn LinkHandler<SimAccepted>,
    ) -> (usize, bool) {
        let mut events = 0;
        if let Some(inbound) = &mut link.inbound {
            events += inbound.lose(id, handler);
        }
        events += self.write(id, link, handler);
        let broken = {
            let state = self.network.state();
            state.end_reached(link.connection, link.side) == Some(End::Broken)
        };
        if !broken && !link.queue.is_empty() && self.network.now() < until {
            return (events, false);
        }
        let (more, gone) = self.finish(id, link, &CloseReason::Local, handler);
        (events + more, gone)
    }

    /// Moves bytes of waiting frames into the connection, and gives back those that are through.
    fn write(
        &mut self,
        id: LinkId,
        link: &mut Link,
        handler: &mut dyn LinkHandler<SimAccepted>,
    ) -> usize {
        let complete = {
            let mut state = self.network.state();
            let (now, max) = (state.now, state.options.write_bytes_max.max(1));
            let Some(pipe) = state.outgoing(link.connection, link.side) else {
                return 0;
            };
            let mut budget = pipe.room_bytes(now).min(max);
            let budget_before = budget;
            let mut complete = 0;
            for frame in link.queue.iter().take(FRAMES_PER_LINK_AND_TURN) {
                let (segment, offset) = &mut link.cursor;
                while *segment < frame.segment_count() {
                    let rest = &frame.segment(*segment)[*offset..];
                    let count = rest.len().min(budget);
                    pipe.write(&rest[..count]);
                    budget -= count;
                    if count < rest.len() {
                        *offset += count;
                        break;
                    }
                    (*segment, *offset) = (*segment + 1, 0);
                }
                if *segment < frame.segment_count() {
                    break;
                }
                link.cursor = (0, 0);
                complete += 1;
            }
            state.dispatch(link.connection, link.side, budget_before - budget);
            complete
        };
        for frame in link.queue.drain(..complete) {
            self.frames_in_flight -= 1;
            handler.sent(id, frame, Outcome::Done);
        }
        complete
    }

    fn read(
        &mut self,
        id: LinkId,
        link: &mut Link,
        handler: &mut dyn LinkHandler<SimAccepted>,
    ) -> usize {
        let Some(inbound) = &mut link.inbound else {
            return 0;
        };
        let mut events = 0;
        if std::mem::take(&mut link.offer_due) {
            events += inbound.offer(id, &[], handler);
        }
        let (key, side) = (link.connection, link.side);
        match inbound.target() {
            ReadTarget::Paused => {}
            ReadTarget::Direct(memory) => {
                let count = self.network.state().read(key, side, memory);
                if count > 0 {
                    events += inbound.landed_direct(id, count, handler);
                }
            }
            ReadTarget::Staging => {
                let count = self.network.state().read(key, side, &mut self.staging);
                if count > 0 {
                    events += inbound.offer(id, &self.staging[..count], handler);
                }
            }
        }
        events
    }

    /// Gives everything back that a link holds, and says that it is gone.
    fn finish(
        &mut self,
        id: LinkId,
        link: &mut Link,
        reason: &CloseReason,
        handler: &mut dyn LinkHandler<SimAccepted>,
    ) -> (usize, bool) {
        let mut events = 1;
        if let Some(inbound) = &mut link.inbound {
            events += inbound.lose(id, handler);
        }
        for frame in link.queue.drain(..) {
            self.frames_in_flight -= 1;
            events += 1;
            handler.sent(id, frame, Outcome::Lost);
        }
        let mut state = self.network.state();
        if state.is_up(self.host, self.epoch) {
            state.leave(link.connection, link.side, true);
        }
        drop(state);
        handler.closed(id, reason);
        (events, true)
    }

    pub(super) fn interest(link: &Link) -> Interest {
        let is_open = link.phase.reads();
        Interest {
            due: (is_open && link.offer_due) || link.phase == Phase::Closing,
            read: is_open
                && !link.is_outlasting
                && link
                    .inbound
                    .as_ref()
                    .is_some_and(|inbound| !inbound.is_paused()),
            write: !link.queue.is_empty(),
            deadline: match link.phase {
                Phase::Flushing { until } => Some(until),
                Phase::Dialling | Phase::Open | Phase::Finishing { .. } | Phase::Closing => None,
            },
        }
    }
}

/// Frames of one link that one turn completes.
const FRAMES_PER_LINK_AND_TURN: usize = 256;
