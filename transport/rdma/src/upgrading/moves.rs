//! What happens while a link moves: records, answers, and links that part or fail on the way.

use grpcxx_transport::{
    CloseReason, Frame, LinkHandler, LinkId, Next, Outcome, Park, Refusal, Refused, TransportError,
};

use super::record::{Record, Secret};
use super::tap::Order;
use super::{
    ANSWER_TIME_MAX, Closing, MEDIUM, REFUSED_TIME, REST_TIME, Resting, Stage, Upgrading, enter,
    leave,
};
use crate::adapter::Adapter;
use crate::links::RdmaLinks;

impl<A: Adapter, T: Park> Upgrading<A, T> {
    /// Does what taps have ordered. Returns the number of events.
    pub(super) fn carry_out(&mut self, handler: &mut dyn LinkHandler<T::Accepted>) -> usize {
        let mut events = 0;
        while let Some(order) = self.desk.orders.pop_front() {
            match order {
                Order::Answer { id, record, next } => self.answer(id, &record, next, handler),
                Order::Switch { id, record, next } => self.switch(id, &record, next, handler),
                Order::Release(id) => self.release(id),
                Order::BaseGone(id, reason) => {
                    let rdma = self.desk.flows.find(id).and_then(|flow| flow.rdma);
                    if let (Some(links), Some(rdma)) = (&mut self.links, rdma) {
                        links.peer_gone(rdma, reason);
                    }
                }
                Order::Fail(id, what) => self.fail(id, what),
                Order::Stay(id, reason) => handler.stayed(id, &reason),
                Order::Check(id) => events += self.check_over(id, handler),
            }
        }
        events
    }

    /// Asks the peer of a dialled link to move.
    pub(super) fn ask(&mut self, id: LinkId, secret: Secret) {
        let (Some(flow), Some(links)) = (self.desk.flows.find(id), &mut self.links) else {
            return;
        };
        if flow.stage != Stage::Base || flow.closing.is_some() || flow.over.is_some() {
            return;
        }
        match links.offer() {
            Ok((rdma, blob)) => {
                flow.rdma = Some(rdma);
                enter(&mut self.desk.by_rdma, rdma, id);
                self.send_record(id, &Record::new(secret, Some(blob)));
                if let Some(flow) = self.desk.flows.find(id) {
                    flow.stage = Stage::Asked {
                        secret,
                        since: None,
                    };
                    self.desk.asked.push(id);
                }
            }
            Err(error) => {
                let order = Order::Stay(id, error.to_string());
                self.desk.orders.push_back(order);
            }
        }
    }

    /// The peer asks to move: answers, and goes over if it can.
    pub(super) fn answer(
        &mut self,
        id: LinkId,
        record: &Record,
        next: Next,
        handler: &mut dyn LinkHandler<T::Accepted>,
    ) {
        let Some(flow) = self.desk.flows.find(id) else {
            return;
        };
        if flow.base.is_none() {
            // The peer went right behind its record.
            return;
        }
        let (Stage::Offered { secret }, Some(links)) = (flow.stage, &mut self.links) else {
            return self.fail(id, "a record came that was not asked for");
        };
        if flow.record_after.is_some() || flow.record_waiting.is_some() {
            return self.fail(id, "a record came before the answer to the last had left");
        }
        let Next::Head { at_least_bytes } = next else {
            return self.fail(id, "a record came within a frame");
        };
        let accepted = if self.now < self.rests_until {
            Err("RDMA failed here a moment ago".to_owned())
        } else {
            (links.accept(&record.blob, Next::Head { at_least_bytes }))
                .map_err(|error| error.to_string())
        };
        let answer = match accepted {
            Ok((rdma, blob)) => {
                flow.rdma = Some(rdma);
                flow.stage = Stage::Moved;
                enter(&mut self.desk.by_rdma, rdma, id);
                handler.moved(id, MEDIUM);
                Record::new(secret, Some(blob))
            }
            Err(reason) => {
                // The peer may ask again: the stage stays.
                handler.stayed(id, &reason);
                Record::new(secret, None)
            }
        };
        self.send_record(id, &answer);
    }

    /// The peer has answered: goes over, or on where it is.
    pub(super) fn switch(
        &mut self,
        id: LinkId,
        record: &Record,
        next: Next,
        handler: &mut dyn LinkHandler<T::Accepted>,
    ) {
        let Some(flow) = self.desk.flows.find(id) else {
            return;
        };
        let (Stage::Asked { secret, .. }, Some(links)) = (flow.stage, &mut self.links) else {
            return self.fail(id, "an answer came that was not asked for");
        };
        if record.is_refusal {
            flow.stage = Stage::Base;
            if let Some(rdma) = flow.rdma.take() {
                links.close(rdma, false);
            }
            handler.stayed(id, "the peer cannot use its RDMA device now");
            let until = self.now + REFUSED_TIME;
            self.desk.resting.push(Resting { id, secret, until });
            return self.release(id);
        }
        let finished = flow.rdma.map(|rdma| links.finish(rdma, &record.blob, next));
        match finished {
            Some(Ok(())) => {
                flow.stage = Stage::Moved;
                if let (None, Some(rdma)) = (flow.base, flow.rdma) {
                    // The peer went right behind its answer; what it sent before is still read.
                    let reason = flow.over.clone().unwrap_or(CloseReason::EndOfStream);
                    links.peer_gone(rdma, reason);
                }
                handler.moved(id, MEDIUM);
                self.release(id);
            }
            // The peer has gone over already, so there is no way back.
            Some(Err(_)) | None => self.fail(id, "the peer's queue cannot be reached"),
        }
    }

    pub(super) fn send_record(&mut self, id: LinkId, record: &Record) {
        let mut frame = Box::new(Frame::new());
        frame.bytes_mut().extend_from_slice(&record.encode());
        self.send_record_frame(id, frame);
    }

    fn send_record_frame(&mut self, id: LinkId, frame: Box<Frame>) {
        let Some(flow) = self.desk.flows.find(id) else {
            return;
        };
        let Some(base) = flow.base else {
            return;
        };
        match self.base.send(base, frame) {
            Ok(()) => {
                flow.record_after = Some(flow.base_frames);
                flow.base_frames += 1;
                self.desk.records_in_flight += 1;
            }
            Err(refused) if refused.refusal == Refusal::Full && flow.base_frames > 0 => {
                flow.record_waiting = Some(refused.value);
            }
            Err(_) => self.fail(id, "the record could not be sent"),
        }
    }

    /// Lets held frames go where they now belong.
    pub(super) fn release(&mut self, id: LinkId) {
        let Some(flow) = self.desk.flows.find(id) else {
            return;
        };
        if let Some(record) = flow.record_waiting.take_if(|_| flow.base_frames == 0) {
            return self.send_record_frame(id, record);
        }
        if flow.record_waiting.is_some() {
            return;
        }
        while !flow.held.is_empty() {
            let is_ready = match flow.stage {
                Stage::Moved => flow.base_frames == 0,
                Stage::Base | Stage::Offered { .. } => true,
                Stage::Asked { .. } => false,
            };
            if !is_ready {
                return;
            }
            let Some(frame) = flow.held.pop_front() else {
                return;
            };
            let refused = match (flow.stage, flow.rdma, flow.base, &mut self.links) {
                (Stage::Moved, Some(rdma), _, Some(links)) => links.send(rdma, frame).err(),
                (_, _, Some(base), _) if flow.stage != Stage::Moved => {
                    flow.base_frames += 1;
                    let refused = self.base.send(base, frame).err();
                    flow.base_frames -= usize::from(refused.is_some());
                    refused
                }
                _ => Some(Refused {
                    value: frame,
                    refusal: Refusal::NotOpen,
                }),
            };
            match refused {
                None => self.held_frames -= 1,
                Some(refused) => {
                    flow.held.push_front(refused.value);
                    return;
                }
            }
        }
        if flow.closing == Some(Closing::Flush)
            && flow.base_frames == 0
            && let (Stage::Moved, Some(rdma), Some(links)) =
                (flow.stage, flow.rdma, &mut self.links)
        {
            links.close(rdma, true);
        }
        if flow.closing == Some(Closing::Flush)
            && let (Stage::Base | Stage::Offered { .. }, Some(base)) = (flow.stage, flow.base)
        {
            self.base.close(base, true);
        }
    }

    /// Ends a link whose ends no longer agree.
    pub(super) fn fail(&mut self, id: LinkId, what: &str) {
        let Some(flow) = self.desk.flows.find(id) else {
            return;
        };
        flow.over.get_or_insert(CloseReason::Failed(TransportError {
            operation: "move a link to RDMA".to_owned(),
            errno: 0,
            message: what.to_owned(),
        }));
        if let (Some(rdma), Some(links)) = (flow.rdma, &mut self.links) {
            links.close(rdma, false);
        }
        if let Some(base) = flow.base {
            self.base.close(base, false);
        }
    }

    /// Takes the ends of links over RDMA. Returns the number of events.
    pub(super) fn part(&mut self, handler: &mut dyn LinkHandler<T::Accepted>) -> usize {
        let mut events = 0;
        while let Some((rdma, reason)) = self.links.as_mut().and_then(RdmaLinks::next_closed) {
            let Some(id) = leave(&mut self.desk.by_rdma, rdma) else {
                continue;
            };
            let Some(flow) = self.desk.flows.find(id) else {
                continue;
            };
            flow.rdma = None;
            match flow.stage {
                Stage::Moved => {
                    if matches!(reason, CloseReason::Failed(_))
                        && flow.base.is_some()
                        && flow.over.is_none()
                    {
                        self.rests_until = self.now + REST_TIME;
                        handler.fell_back(id, &reason.to_string());
                    }
                    flow.over.get_or_insert(reason);
                    if let Some(base) = flow.base {
                        self.base.close(base, false);
                    }
                    events += self.check_over(id, handler);
                }
                // The answer decides what becomes of the link.
                Stage::Base | Stage::Offered { .. } | Stage::Asked { .. } => {}
            }
        }
        events
    }

    /// Reports a link that is gone on both media. Returns the number of events.
    pub(super) fn check_over(
        &mut self,
        id: LinkId,
        handler: &mut dyn LinkHandler<T::Accepted>,
    ) -> usize {
        let is_over = self.desk.flows.find(id).is_some_and(|flow| {
            flow.base.is_none() && (flow.rdma.is_none() || flow.stage != Stage::Moved)
        });
        if !is_over {
            return 0;
        }
        let Some((_, mut flow)) = self.desk.flows.take(id.slot as usize) else {
            return 0;
        };
        if let (Some(rdma), Some(links)) = (flow.rdma, &mut self.links) {
            leave(&mut self.desk.by_rdma, rdma);
            links.close(rdma, false);
        }
        let mut events = 1;
        while let Some(frame) = flow.held.pop_front() {
            self.held_frames -= 1;
            handler.sent(id, frame, Outcome::Lost);
            events += 1;
        }
        self.desk.flows.free(id);
        let reason = flow.over.unwrap_or(CloseReason::EndOfStream);
        handler.closed(id, &reason);
        events
    }

    /// Asks for links whose time has come.
    pub(super) fn check_resting(&mut self) {
        let mut index = 0;
        while let Some(resting) = self.desk.resting.get(index) {
            if self.now < resting.until {
                index += 1;
                continue;
            }
            let Resting { id, secret, .. } = self.desk.resting.swap_remove(index);
            self.ask(id, secret);
        }
    }

    /// Closes links whose frames did not leave in time.
    pub(super) fn check_closing(&mut self) {
        let mut index = 0;
        while let Some(&(id, until)) = self.desk.closing.get(index) {
            if self.now < until {
                index += 1;
                continue;
            }
            self.desk.closing.swap_remove(index);
            let Some(flow) = self.desk.flows.find(id) else {
                continue;
            };
            flow.over.get_or_insert(CloseReason::Local);
            if let (Some(rdma), Some(links)) = (flow.rdma, &mut self.links) {
                links.close(rdma, false);
            }
            if let Some(base) = flow.base {
                self.base.close(base, false);
            }
        }
    }

    /// Gives links up whose peers do not answer.
    pub(super) fn check_asked(&mut self) {
        let mut index = 0;
        while let Some(&id) = self.desk.asked.get(index) {
            if let Some(flow) = self.desk.flows.find(id)
                && let Stage::Asked { since, .. } = &mut flow.stage
            {
                let since = *since.get_or_insert(self.now);
                if self.now.since(since) <= ANSWER_TIME_MAX {
                    index += 1;
                    continue;
                }
                self.fail(id, "the peer did not answer");
            }
            self.desk.asked.swap_remove(index);
        }
    }
}
