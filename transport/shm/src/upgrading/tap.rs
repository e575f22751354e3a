use std::net::SocketAddr;

use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, LinkTable, ListenerId, Next, Outcome,
    Progress,
};

use super::flow::{Flow, Stage};

/// Sits between the first medium and the handler during a turn.
pub(crate) struct Tap<'a, A> {
    pub(crate) flows: &'a mut LinkTable<Flow>,
    pub(crate) by_base: &'a mut Vec<Option<LinkId>>,
    pub(crate) handler: &'a mut dyn LinkHandler<A>,
    /// Events that the handler has seen.
    pub(crate) events: usize,
}

impl<A> Tap<'_, A> {
    fn id(&self, base: LinkId) -> LinkId {
        let id = self.by_base.get(base.slot as usize).copied().flatten();
        id.expect("events come of links that were dialled or adopted here")
    }
}

impl<A> LinkHandler<A> for Tap<'_, A> {
    fn accepted(&mut self, listener: ListenerId, peer: SocketAddr, accepted: A) {
        self.events += 1;
        self.handler.accepted(listener, peer, accepted);
    }

    fn connected(&mut self, base: LinkId) -> Next {
        let id = self.id(base);
        self.events += 1;
        let next = self.handler.connected(id);
        match self.flows.find(id) {
            Some(flow) => flow.steer(next),
            None => next,
        }
    }

    fn received(&mut self, base: LinkId, bytes: &[u8]) -> Progress {
        let id = self.id(base);
        if let Some(flow) = self.flows.find(id)
            && flow.reads_channel()
        {
            flow.fail_stray();
            return Progress {
                consumed_bytes: bytes.len(),
                next: Next::Pause,
            };
        }
        self.events += 1;
        let progress = self.handler.received(id, bytes);
        let next = match self.flows.find(id) {
            Some(flow) => {
                flow.take(progress.consumed_bytes);
                flow.steer(progress.next)
            }
            None => progress.next,
        };
        Progress {
            consumed_bytes: progress.consumed_bytes,
            next,
        }
    }

    fn landed(&mut self, base: LinkId, landing: Landing, outcome: Outcome) -> Next {
        let id = self.id(base);
        self.events += 1;
        let next = self.handler.landed(id, landing, outcome);
        match self.flows.find(id) {
            Some(flow) if outcome == Outcome::Done => {
                flow.take_landing();
                flow.steer(next)
            }
            _ => next,
        }
    }

    fn sent(&mut self, base: LinkId, frame: Box<Frame>, outcome: Outcome) {
        let id = self.id(base);
        if let Some(flow) = self.flows.find(id) {
            flow.note_sent();
        }
        self.events += 1;
        self.handler.sent(id, frame, outcome);
    }

    fn closed(&mut self, base: LinkId, reason: &CloseReason) {
        let id = self.id(base);
        self.by_base[base.slot as usize] = None;
        let Some((_, mut flow)) = self.flows.take(id.slot as usize) else {
            return;
        };
        flow.base = None;
        if let Stage::Moved(_) = flow.stage {
            if let Some(channel) = flow.channel()
                && !channel.is_open()
            {
                // The peer may have said where it goes on just before.
                let _ = channel.hear();
                flow.try_move();
            }
            let reads_channel = flow.reads_channel();
            if let Stage::Moved(link) = &mut flow.stage
                && !reads_channel
            {
                link.phase.end(reason.clone());
            }
            self.flows.put_back(id, flow);
            return;
        }
        self.flows.free(id);
        self.events += 1;
        self.handler.closed(id, reason);
    }
}
