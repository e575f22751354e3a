use grpcxx_rpc::{Reason, Request, Response, Tensor, home_shard};
use smallvec::SmallVec;

use crate::call::CallResult;
use crate::command::{Command, Keys, Origin, SlotId, Taken};
use crate::latency::CallSide;
use crate::shard::core::Core;
use crate::shard::servers::ServerLink;

impl<A> Core<A> {
    /// Answers a request, on whatever shard it came from. If nobody wants the answer any more,
    /// tensors that were taken out of a step for it go back there.
    pub(super) fn answer(&mut self, origin: Origin, result: CallResult, taken: Option<Taken>) {
        if origin.shard() != self.index {
            self.route(
                origin.shard(),
                Command::Answer {
                    origin,
                    result,
                    taken,
                },
            );
            return;
        }
        match origin {
            Origin::Local { call, .. } => self.answer_call(call, result, taken),
            Origin::Link {
                server: id,
                request,
                ..
            } => {
                let failure = result.as_ref().err().cloned();
                let Some(server) = self.incoming.servers.find_mut(id) else {
                    return self.put_back(result, taken);
                };
                server.waits.end(request);
                if !server.streams.is_empty() {
                    // What was sent before goes before.
                    self.pump_request(id, request, true);
                }
                let Some(server) = self.incoming.servers.find_mut(id) else {
                    return self.put_back(result, taken);
                };
                server.end_stream(request);
                let arena = &mut self.arena;
                let mut memory = |len| arena.allocate(len).ok();
                let connection = &mut server.connection;
                if let Err(result) = connection.try_answer_in(request, result, &mut memory) {
                    // A withdrawn call has done something too, as to begin to stage.
                    self.mark_server(id);
                    return self.put_back(result, taken);
                }
                self.note_request(id, request);
                if let Some(status) = failure {
                    self.failures.note(CallSide::Server, &status, self.now);
                    self.counters().requests_failed.add(1);
                }
                self.mark_server(id);
            }
        }
    }

    /// Answers a request of this shard with tensors that their owner keeps.
    pub(super) fn answer_kept(&mut self, origin: Origin, tensors: &[Tensor]) {
        let Origin::Link {
            server: id,
            request,
            ..
        } = origin
        else {
            let tensors = tensors.iter().cloned().collect();
            return self.answer(origin, Ok(Response::Tensors(tensors)), None);
        };
        let Some(server) = self.incoming.servers.find_mut(id) else {
            return;
        };
        let arena = &mut self.arena;
        let mut memory = |len| arena.allocate(len).ok();
        let connection = &mut server.connection;
        if connection.answer_kept_in(request, tensors, &mut memory) {
            self.note_request(id, request);
            self.mark_server(id);
        }
    }

    /// Puts tensors back whose answer had not left when the connection was lost.
    pub(super) fn take_undelivered(&mut self, id: SlotId) {
        while let Some(undelivered) = self
            .incoming
            .servers
            .find_mut(id)
            .and_then(ServerLink::poll_undelivered)
        {
            let (step_id, keys) = match undelivered.request {
                Request::RecvTensor { step_id, key } => (step_id, Keys::One(key)),
                Request::FuseRecvTensor { step_id, keys } => (step_id, Keys::Many(keys)),
                Request::Message { .. }
                | Request::StarRunGraph(_)
                | Request::Unary(_)
                | Request::Stream(_) => continue,
            };
            self.route_restore(step_id, keys, undelivered.tensors);
        }
        while let Some(held) =
            (self.incoming.servers.find_mut(id)).and_then(|server| server.connection.poll_lost())
        {
            if let Some((step_id, key, tensor)) = self.steps.take_held(held) {
                self.route_restore(step_id, Keys::One(key), SmallVec::from_buf([tensor]));
            }
        }
    }

    fn answer_call(&mut self, call: SlotId, result: CallResult, taken: Option<Taken>) {
        if let Some(watch) = self.outgoing.calls.take_watch(call) {
            watch.delivered();
        }
        // Peers hear that they may try again, this process that it is the one to be mended.
        let result = result.map_err(|status| match status.reason {
            Reason::ShardDied => self.ending(),
            _ => status,
        });
        if let Err(result) = self.try_finish_call(call, result) {
            self.put_back(result, taken);
        }
    }

    fn put_back(&mut self, result: CallResult, taken: Option<Taken>) {
        if let (Some(taken), Ok(Response::Tensors(tensors))) = (taken, result) {
            self.route_restore(taken.step_id, taken.keys, tensors);
        }
    }

    fn route_restore(&mut self, step_id: i64, keys: Keys, tensors: SmallVec<[Tensor; 1]>) {
        let home = home_shard(step_id, self.shared.loads.len());
        self.route(
            home,
            Command::Restore {
                step_id,
                keys,
                tensors,
            },
        );
    }
}
