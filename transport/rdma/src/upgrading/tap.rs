use std::net::SocketAddr;

use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Next, Outcome, Progress,
};

use super::record::{RECORD_BYTES, Record, Secret, position};
use super::{Desk, Flow, Stage, leave};

/// What a tap cannot do itself, since the medium is in its turn.
pub(super) enum Order {
    /// A record came for the side that accepted; the handler's next order goes over with the stream.
    Answer {
        id: LinkId,
        record: Record,
        next: Next,
    },
    /// A record came for the side that dialled.
    Switch {
        id: LinkId,
        record: Record,
        next: Next,
    },
    /// Held frames may go.
    Release(LinkId),
    /// The first medium has lost the link.
    BaseGone(LinkId, CloseReason),
    /// The ends do not agree.
    Fail(LinkId, &'static str),
    /// The link may be gone.
    Check(LinkId),
    /// The link cannot move.
    Stay(LinkId, String),
}

/// Takes the events of the first medium.
pub(super) struct BaseTap<'a, H> {
    pub(super) desk: &'a mut Desk,
    pub(super) handler: &'a mut dyn LinkHandler<H>,
    pub(super) events: usize,
}

/// Takes the events of links over RDMA.
pub(super) struct RdmaTap<'a, H> {
    pub(super) desk: &'a mut Desk,
    pub(super) handler: &'a mut dyn LinkHandler<H>,
    pub(super) events: usize,
}

impl Flow {
    /// Notes an order of the handler.
    pub(super) fn note(&mut self, next: &Next) {
        match next {
            Next::Head { at_least_bytes }
            | Next::Discard {
                then_at_least_bytes: at_least_bytes,
                ..
            } => self.asked_head = *at_least_bytes,
            Next::Land(_) | Next::Pause => {}
        }
    }

    /// The secret whose record may come on the first medium.
    ///
    /// It is looked for as long as the link is there: a peer that is late, or has much to send before it, must still be
    /// understood, and one that never asks costs a search of the heads it sends.
    fn awaited(&self) -> Option<Secret> {
        match self.stage {
            Stage::Offered { secret } | Stage::Asked { secret, .. } => Some(secret),
            Stage::Base | Stage::Moved => None,
        }
    }
}

impl<H> BaseTap<'_, H> {
    fn id(&self, base: LinkId) -> LinkId {
        let id = self.desk.by_base.get(base.slot as usize).copied();
        id.flatten()
            .expect("events come of links that were dialled or adopted here")
    }

    /// A record is complete: what the handler wants next goes over with the stream.
    fn go_over(&mut self, id: LinkId, record: Record, next: Next) {
        let is_asked = (self.desk.flows.find(id))
            .is_some_and(|flow| matches!(flow.stage, Stage::Asked { .. }));
        self.desk.orders.push_back(if is_asked {
            Order::Switch { id, record, next }
        } else {
            Order::Answer { id, record, next }
        });
    }

    /// Shows the handler bytes of the first medium, and notes what it wants next.
    fn show(&mut self, id: LinkId, bytes: &[u8]) -> Progress {
        self.events += 1;
        let progress = self.handler.received(id, bytes);
        self.note(id, &progress.next);
        progress
    }

    fn note(&mut self, id: LinkId, next: &Next) {
        if let Some(flow) = self.desk.flows.find(id) {
            flow.note(next);
        }
    }

    /// The bytes up to a record, the record, and what follows it.
    fn meet_record(&mut self, id: LinkId, bytes: &[u8], at: usize, is_quiet: bool) -> Progress {
        let (shown, rest) = bytes.split_at(at);
        if !shown.is_empty() && !is_quiet {
            let progress = self.show(id, shown);
            if progress.consumed_bytes < shown.len() || !matches!(progress.next, Next::Head { .. })
            {
                // The frame goes on; the record is met again behind it.
                return progress;
            }
        }
        let head_bytes = (self.desk.flows.find(id)).map_or(1, |flow| flow.asked_head.max(1));
        let head = |at_least_bytes| Next::Head { at_least_bytes };
        let Some(record) = Record::decode(rest) else {
            return Progress {
                consumed_bytes: at,
                next: head(RECORD_BYTES),
            };
        };
        let is_refusal = record.is_refusal;
        let behind = &rest[RECORD_BYTES..];
        self.go_over(id, record, head(head_bytes));
        let mut progress = Progress {
            consumed_bytes: at + RECORD_BYTES,
            next: head(head_bytes),
        };
        if !is_refusal && !behind.is_empty() {
            let order = Order::Fail(id, "bytes came beyond the record");
            self.desk.orders.push_back(order);
            return all_of(bytes);
        }
        if is_quiet {
            return Progress {
                consumed_bytes: bytes.len(),
                next: head(1),
            };
        }
        if behind.len() >= head_bytes {
            let further = self.show(id, behind);
            progress.consumed_bytes += further.consumed_bytes;
            progress.next = further.next;
        }
        progress
    }
}

impl<H> LinkHandler<H> for BaseTap<'_, H> {
    fn accepted(&mut self, listener: ListenerId, peer: SocketAddr, accepted: H) {
        self.events += 1;
        self.handler.accepted(listener, peer, accepted);
    }

    fn connected(&mut self, base: LinkId) -> Next {
        let id = self.id(base);
        self.events += 1;
        let next = self.handler.connected(id);
        self.note(id, &next);
        next
    }

    fn received(&mut self, base: LinkId, bytes: &[u8]) -> Progress {
        let id = self.id(base);
        let Some(flow) = self.desk.flows.find(id) else {
            return all_of(bytes);
        };
        if flow.stage == Stage::Moved {
            self.desk
                .orders
                .push_back(Order::Fail(id, "bytes came beyond the record"));
            return all_of(bytes);
        }
        let is_quiet = flow.closing.is_some();
        let awaited = flow.awaited();
        match awaited.and_then(|secret| position(bytes, &secret)) {
            Some(at) => self.meet_record(id, bytes, at, is_quiet),
            None if is_quiet => Progress {
                consumed_bytes: bytes.len(),
                next: Next::Head { at_least_bytes: 1 },
            },
            None => self.show(id, bytes),
        }
    }

    fn landed(&mut self, base: LinkId, landing: Landing, outcome: Outcome) -> Next {
        let id = self.id(base);
        self.events += 1;
        let next = self.handler.landed(id, landing, outcome);
        self.note(id, &next);
        next
    }

    fn sent(&mut self, base: LinkId, frame: Box<Frame>, outcome: Outcome) {
        let id = self.id(base);
        if let Some(flow) = self.desk.flows.find(id) {
            flow.base_frames -= 1;
            if flow.base_frames == 0 {
                self.desk.orders.push_back(Order::Release(id));
            }
            match &mut flow.record_after {
                Some(0) => {
                    flow.record_after = None;
                    self.desk.records_in_flight -= 1;
                    return;
                }
                Some(before) => *before -= 1,
                None => {}
            }
        }
        self.events += 1;
        self.handler.sent(id, frame, outcome);
    }

    fn closed(&mut self, base: LinkId, reason: &CloseReason) {
        let id = self.id(base);
        leave(&mut self.desk.by_base, base);
        if let Some(flow) = self.desk.flows.find(id) {
            flow.base = None;
            if flow.stage == Stage::Moved && flow.over.is_none() {
                self.desk
                    .orders
                    .push_back(Order::BaseGone(id, reason.clone()));
            } else {
                flow.over.get_or_insert(reason.clone());
            }
            self.desk.orders.push_back(Order::Check(id));
        }
    }

    fn moved(&mut self, base: LinkId, medium: &'static str) {
        let id = self.id(base);
        self.handler.moved(id, medium);
    }

    fn stayed(&mut self, base: LinkId, reason: &str) {
        let id = self.id(base);
        self.handler.stayed(id, reason);
    }

    fn fell_back(&mut self, base: LinkId, reason: &str) {
        let id = self.id(base);
        self.handler.fell_back(id, reason);
    }
}

impl<H> RdmaTap<'_, H> {
    fn id(&self, rdma: LinkId) -> Option<LinkId> {
        (self.desk.by_rdma.get(rdma.slot as usize).copied()).flatten()
    }
}

impl<H> LinkHandler<H> for RdmaTap<'_, H> {
    fn accepted(&mut self, _: ListenerId, _: SocketAddr, _: H) {}

    fn connected(&mut self, _: LinkId) -> Next {
        Next::Pause
    }

    fn received(&mut self, rdma: LinkId, bytes: &[u8]) -> Progress {
        let Some(id) = self.id(rdma) else {
            return all_of(bytes);
        };
        if (self.desk.flows.find(id)).is_none_or(|flow| flow.closing.is_some()) {
            return all_of(bytes);
        }
        self.events += 1;
        self.handler.received(id, bytes)
    }

    fn landed(&mut self, rdma: LinkId, landing: Landing, outcome: Outcome) -> Next {
        let Some(id) = self.id(rdma) else {
            return Next::Pause;
        };
        self.events += 1;
        self.handler.landed(id, landing, outcome)
    }

    fn sent(&mut self, rdma: LinkId, frame: Box<Frame>, outcome: Outcome) {
        if let Some(id) = self.id(rdma) {
            self.events += 1;
            if (self.desk.flows.find(id)).is_some_and(|flow| !flow.held.is_empty()) {
                self.desk.orders.push_back(Order::Release(id));
            }
            self.handler.sent(id, frame, outcome);
        }
    }

    fn closed(&mut self, _: LinkId, _: &CloseReason) {}
}

/// Takes bytes that nobody may see.
fn all_of(bytes: &[u8]) -> Progress {
    Progress {
        consumed_bytes: bytes.len(),
        next: Next::Pause,
    }
}
