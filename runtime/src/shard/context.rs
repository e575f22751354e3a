use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use grpcxx_rpc::{Request, Tensor, Text};
use grpcxx_transport::Time;

use crate::call::CallSink;
use crate::client::Peer;
use crate::command::{Command, NewCall};
use crate::completion::Completion;

/// What code that runs on a shard may ask of it. Orders are carried out after the code has returned.
pub struct ShardContext<'a> {
    pub(super) index: usize,
    pub(super) now: Time,
    pub(super) shards: usize,
    pub(super) orders: &'a mut VecDeque<Command>,
}

impl<'a> ShardContext<'a> {
    /// In place of that of a shard that is gone: nobody carries the orders out.
    pub(crate) fn stopped(orders: &'a mut VecDeque<Command>) -> Self {
        Self {
            index: 0,
            now: Time::ZERO,
            shards: 0,
            orders,
        }
    }
}

impl ShardContext<'_> {
    /// Index of the shard.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The time at which this turn of the shard began.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Calls a peer; the result goes to `sink` on the peer's shard. A peer that is handed over is not cloned.
    pub fn call(
        &mut self,
        peer: impl Into<Peer>,
        request: Request,
        timeout: Option<Duration>,
        sink: Arc<dyn CallSink>,
        token: u64,
    ) {
        self.orders.push_back(Command::Call(NewCall {
            peer: peer.into(),
            request,
            timeout,
            completion: Completion::sink(sink, token),
            cancellable: None,
        }));
    }

    /// Puts a tensor into a step of this task, where a receiver will find it. A key that is taken or a step
    /// that was aborted drops the tensor and counts it.
    pub fn send(&mut self, step_id: i64, key: Text, tensor: Tensor) {
        self.orders.push_back(Command::Send {
            step_id,
            key,
            tensor,
            origin: None,
        });
    }

    /// Number of shards of the engine.
    pub fn shards(&self) -> usize {
        self.shards
    }
}
