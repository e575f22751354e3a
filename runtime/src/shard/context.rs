use std::borrow::Borrow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use grpcxx_rpc::{Request, Tensor, Text};
use grpcxx_transport::Time;

use crate::call::CallSink;
use crate::client::Peer;
use crate::command::{Command, NewCall};
use crate::completion::{Completion, Recipient, Target};

/// What code that runs on a shard may ask of it. Nothing that it asks for ends before the code has returned.
pub struct ShardContext<'a> {
    shard: &'a mut dyn Orders,
}

/// Who carries out what is asked of a [`ShardContext`].
pub(crate) trait Orders {
    fn index(&self) -> usize;
    fn now(&self) -> Time;
    fn shards(&self) -> usize;

    /// Makes a call, or orders it.
    fn call(
        &mut self,
        peer: &Peer,
        request: Request,
        timeout: Option<Duration>,
        recipient: Recipient,
    );

    /// Asks for one tensor in the same way. The recipient has said whether the data may share memory.
    fn receive_from(
        &mut self,
        peer: &Peer,
        step_id: i64,
        key: &Text,
        timeout: Option<Duration>,
        recipient: Recipient,
        shares_memory: bool,
    ) {
        // Who carries the call out asks the recipient again.
        let _ = shares_memory;
        let key = key.clone();
        self.call(
            peer,
            Request::RecvTensor { step_id, key },
            timeout,
            recipient,
        );
    }

    /// Does this once the code has returned.
    fn order(&mut self, command: Command);
}

impl<'a> ShardContext<'a> {
    pub(crate) fn new(shard: &'a mut dyn Orders) -> Self {
        Self { shard }
    }
}

impl ShardContext<'_> {
    /// Index of the shard.
    pub fn index(&self) -> usize {
        self.shard.index()
    }

    /// The time at which this turn of the shard began.
    pub fn now(&self) -> Time {
        self.shard.now()
    }

    /// Calls a peer; the result goes to `sink` on the peer's shard, after the present code has returned. A peer by
    /// reference is not cloned unless the call has to wait. For one tensor [`receive`](Self::receive) costs less.
    #[inline]
    pub fn call(
        &mut self,
        peer: impl Borrow<Peer>,
        request: Request,
        timeout: Option<Duration>,
        sink: Arc<dyn CallSink>,
        token: u64,
    ) {
        let recipient = Recipient { sink, token };
        self.shard.call(peer.borrow(), request, timeout, recipient);
    }

    /// Asks a peer for one tensor by rendezvous key, as [`call`](Self::call) does with [`Request::RecvTensor`]. There is no
    /// request to build and drop, and the type of the sink is known where it says whether it brings memory, so a small call
    /// costs its caller some 60 instructions of 700 less. A sink that is known as `dyn CallSink` alone takes
    /// [`call`](Self::call).
    #[inline]
    pub fn receive(
        &mut self,
        peer: impl Borrow<Peer>,
        step_id: i64,
        key: &Text,
        timeout: Option<Duration>,
        sink: Arc<impl CallSink + 'static>,
        token: u64,
    ) {
        let shares_memory = !sink.allocates(token);
        let recipient = Recipient { sink, token };
        let peer = peer.borrow();
        (self.shard).receive_from(peer, step_id, key, timeout, recipient, shares_memory);
    }

    /// Puts a tensor into a step of this task, where a receiver will find it. A key that is taken or a step
    /// that was aborted drops the tensor and counts it.
    pub fn send(&mut self, step_id: i64, key: Text, tensor: Tensor) {
        self.shard.order(Command::Send {
            step_id,
            key,
            tensor,
            origin: None,
        });
    }

    /// Number of shards of the engine.
    pub fn shards(&self) -> usize {
        self.shard.shards()
    }
}

/// In place of a shard that is gone: nobody carries the orders out.
impl Orders for VecDeque<Command> {
    fn index(&self) -> usize {
        0
    }

    fn now(&self) -> Time {
        Time::ZERO
    }

    fn shards(&self) -> usize {
        0
    }

    fn call(
        &mut self,
        peer: &Peer,
        request: Request,
        timeout: Option<Duration>,
        recipient: Recipient,
    ) {
        self.push_back(Command::Call(NewCall {
            peer: peer.clone(),
            request,
            timeout,
            completion: Completion::new(Target::Sink(recipient)),
            cancellable: None,
        }));
    }

    fn order(&mut self, command: Command) {
        self.push_back(command);
    }
}
