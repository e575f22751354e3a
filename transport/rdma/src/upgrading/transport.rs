//! What whoever uses the links may ask of them, wherever they are.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::task::Waker;
use std::time::Duration;

use grpcxx_transport::{
    Frame, LinkHandler, LinkId, ListenerId, Next, Park, Refusal, Refused, Time, Transport,
    TransportError,
};

use super::record::{self, Secret, split_offer};
use super::tap::{BaseTap, RdmaTap};
use super::{Closing, Resting, Stage, Upgrading};
use crate::adapter::Adapter;
use crate::links::RdmaLinks;

impl<A: Adapter, T: Park> Transport for Upgrading<A, T> {
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
        let head_bytes = match &next {
            Next::Head { at_least_bytes } => *at_least_bytes,
            _ => 1,
        };
        let base = self.base.adopt(accepted, next)?;
        let id = self.insert(base);
        if let Some(flow) = self.desk.flows.find(id) {
            flow.asked_head = head_bytes;
        }
        Ok(id)
    }

    fn connect(&mut self, peer: SocketAddr) -> Result<LinkId, TransportError> {
        let base = self.base.connect(peer)?;
        Ok(self.insert(base))
    }

    fn send(&mut self, link: LinkId, frame: Box<Frame>) -> Result<(), Refused<Box<Frame>>> {
        let refuse = |value, refusal| Err(Refused { value, refusal });
        let Some(flow) = self.desk.flows.find(link) else {
            return refuse(frame, Refusal::NotOpen);
        };
        if flow.closing.is_some() || flow.over.is_some() {
            return refuse(frame, Refusal::NotOpen);
        }
        let waits = match flow.stage {
            Stage::Asked { .. } => true,
            Stage::Moved => flow.base_frames > 0 || !flow.held.is_empty(),
            Stage::Base | Stage::Offered { .. } => !flow.held.is_empty(),
        };
        if waits {
            if flow.held.len() >= HELD_FRAMES_MAX {
                return refuse(frame, Refusal::Full);
            }
            flow.held.push_back(frame);
            self.held_frames += 1;
            return Ok(());
        }
        match (flow.stage, flow.rdma, flow.base, &mut self.links) {
            (Stage::Moved, Some(rdma), _, Some(links)) => links.send(rdma, frame),
            (Stage::Base | Stage::Offered { .. }, _, Some(base), _) => {
                match self.base.send(base, frame) {
                    Ok(()) => flow.base_frames += 1,
                    // Its place is taken by a record, of whose end nobody is told.
                    Err(refused)
                        if refused.refusal == Refusal::Full && flow.record_after.is_some() =>
                    {
                        flow.held.push_back(refused.value);
                        self.held_frames += 1;
                    }
                    Err(refused) => return Err(refused),
                }
                Ok(())
            }
            _ => refuse(frame, Refusal::NotOpen),
        }
    }

    fn resume(&mut self, link: LinkId, next: Next) -> Result<(), Refused<Next>> {
        let refuse = |value, refusal| Err(Refused { value, refusal });
        let Some(flow) = self.desk.flows.find(link) else {
            return refuse(next, Refusal::NotOpen);
        };
        if flow.closing.is_some() || flow.over.is_some() {
            return refuse(next, Refusal::NotOpen);
        }
        match (flow.stage, flow.rdma, flow.base, &mut self.links) {
            (Stage::Moved, Some(rdma), _, Some(links)) => links.resume(rdma, next),
            (Stage::Base | Stage::Offered { .. } | Stage::Asked { .. }, _, Some(base), _) => {
                flow.note(&next);
                self.base.resume(base, next)
            }
            _ => refuse(next, Refusal::NotOpen),
        }
    }

    fn close(&mut self, link: LinkId, flush: bool) {
        let Some(flow) = self.desk.flows.find(link) else {
            return;
        };
        if flow.closing == Some(Closing::Now) || flow.over.is_some() {
            return;
        }
        let is_first = flow.closing.is_none();
        if !is_first {
            return;
        }
        flow.closing = Some(if flush { Closing::Flush } else { Closing::Now });
        match flow.stage {
            Stage::Base | Stage::Offered { .. } if flow.held.is_empty() || !flush => {
                if let Some(base) = flow.base {
                    self.base.close(base, flush);
                }
            }
            Stage::Moved if !flush || (flow.held.is_empty() && flow.base_frames == 0) => {
                if let (Some(rdma), Some(links)) = (flow.rdma, &mut self.links) {
                    links.close(rdma, flush);
                }
            }
            Stage::Asked { .. } if !flush => {
                if let Some(base) = flow.base {
                    self.base.close(base, false);
                }
            }
            // The frames that are held go first.
            Stage::Base | Stage::Offered { .. } | Stage::Asked { .. } | Stage::Moved => {
                let until = self.now + CLOSE_TIME_MAX;
                self.desk.closing.push((link, until));
            }
        }
    }

    fn turn(&mut self, now: Time, handler: &mut dyn LinkHandler<T::Accepted>) -> usize {
        self.now = now;
        let mut events = 0;
        if let Some(links) = &mut self.links {
            let mut tap = RdmaTap {
                desk: &mut self.desk,
                handler,
                events: 0,
            };
            links.turn(now, &mut tap);
            events += tap.events;
        }
        if events > 0 {
            self.stirred = Some(now);
        }
        if self.is_turn_of_base(now) {
            let mut tap = BaseTap {
                desk: &mut self.desk,
                handler,
                events: 0,
            };
            self.base.turn(now, &mut tap);
            events += tap.events;
        }
        events += self.carry_out(handler);
        if !self.desk.resting.is_empty() {
            self.check_resting();
        }
        if !self.desk.closing.is_empty() {
            self.check_closing();
        }
        if !self.desk.asked.is_empty() {
            self.check_asked();
            events += self.carry_out(handler);
        }
        events += self.part(handler);
        self.give_way(events);
        events
    }

    fn submit(&mut self) {
        if let Some(links) = &mut self.links {
            links.submit();
        }
        self.base.submit();
    }

    fn frames_in_flight(&self) -> usize {
        let over_rdma = (self.links.as_ref()).map_or(0, RdmaLinks::frames_in_flight);
        self.base.frames_in_flight() - self.desk.records_in_flight + over_rdma + self.held_frames
    }

    fn offer(&mut self, link: LinkId) -> Option<Vec<u8>> {
        let flow = self.desk.flows.find(link)?;
        let mut offer = flow
            .base
            .and_then(|base| self.base.offer(base))
            .unwrap_or_default();
        if self.links.is_some() && flow.stage == Stage::Base {
            let secret: Secret = std::array::from_fn(|_| fastrand::u8(..));
            flow.stage = Stage::Offered { secret };
            record::append_offer(&mut offer, &secret);
        }
        (!offer.is_empty()).then_some(offer)
    }

    fn upgrade(&mut self, link: LinkId, offer: &[u8]) {
        let (nearer, secret) = split_offer(offer);
        let Some(flow) = self.desk.flows.find(link) else {
            return;
        };
        let Some(base) = flow.base else {
            return;
        };
        let is_near = self.leaves_near && record::is_of_this_host(nearer);
        if !nearer.is_empty() {
            self.base.upgrade(base, nearer);
        }
        let (Some(secret), true) = (secret, self.links.is_some()) else {
            return;
        };
        if is_near || flow.stage != Stage::Base {
            return;
        }
        if self.now < self.rests_until {
            let (id, until) = (link, self.rests_until);
            self.desk.resting.push(Resting { id, secret, until });
        } else {
            self.ask(link, secret);
        }
    }
}

impl<A: Adapter, T: Park> Park for Upgrading<A, T> {
    fn park(&mut self, timeout: Option<Duration>) -> Result<(), TransportError> {
        let Some(links) = &mut self.links else {
            return self.base.park(timeout);
        };
        if !self.desk.orders.is_empty() || !links.arm() {
            return Ok(());
        }
        let patience = links.patience();
        let check = self.is_waiting().then_some(WAIT_CHECK);
        let timeout = [timeout, patience, check].into_iter().flatten().min();
        self.stirred = None;
        self.base.park(timeout)
    }

    fn park_fd(&mut self) -> Option<BorrowedFd<'_>> {
        if let Some(links) = &mut self.links
            && (links.patience().is_some() || !self.desk.orders.is_empty() || !links.arm())
        {
            return None;
        }
        self.base.park_fd()
    }

    fn unpark(&mut self) {
        self.stirred = None;
        self.base.unpark();
    }

    fn waker(&self) -> Waker {
        self.base.waker()
    }

    fn watch(&mut self, companion: BorrowedFd<'_>) -> Result<(), TransportError> {
        self.base.watch(companion)
    }
}

/// Frames of one link that wait for the answer.
const HELD_FRAMES_MAX: usize = 1024;

/// How long a link that closes waits for an answer before it closes without.
const CLOSE_TIME_MAX: Duration = Duration::from_millis(250);

/// How often a thread that sleeps looks whether an answer is late, or a rest over.
const WAIT_CHECK: Duration = Duration::from_millis(100);
