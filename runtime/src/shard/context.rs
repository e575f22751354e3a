//! What code that runs on a shard may ask of it.

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use grpcxx_rpc::{Envelope, GraphCall, Request, Status, Tensor, Text};
use grpcxx_transport::Time;

use crate::call::{CallSpec, CompletionHandler};
use crate::client::Peer;
use crate::command::{Command, NewCall};
use crate::completion::{Completion, Recipient, Target};

/// What code that runs on a shard may ask of it. Nothing that it asks for ends before the code has
/// returned.
pub struct ShardContext<'a> {
    shard: &'a mut dyn Commands,
}

/// A call that its caller keeps, to make it again.
#[derive(Clone, Copy)]
pub(crate) enum KeptCall<'a> {
    Graph(&'a GraphCall),
    Path(&'a Envelope),
}

/// Carries out what is asked of a [`ShardContext`].
pub(crate) trait Commands {
    fn index(&self) -> usize;
    fn now(&self) -> Time;
    fn shards(&self) -> usize;

    /// Makes a call at once, or defers it.
    fn submit(&mut self, spec: CallSpec<'_>, recipient: Recipient);

    /// Makes a call at once, or defers it, as [`Commands::submit`] does, without more to say of it.
    fn submit_request(
        &mut self,
        peer: &Peer,
        request: Request,
        timeout: Option<Duration>,
        recipient: Recipient,
    ) {
        let spec = CallSpec::new(peer, request).with_timeout(timeout);
        self.submit(spec, recipient);
    }

    /// Makes a call that its caller keeps.
    fn submit_kept(
        &mut self,
        peer: &Peer,
        call: KeptCall<'_>,
        timeout: Option<Duration>,
        recipient: Recipient,
    ) {
        self.submit_request(peer, call.to_request(), timeout, recipient);
    }

    /// Makes a call for one tensor. The recipient has said whether the data may share memory.
    fn receive(
        &mut self,
        peer: &Peer,
        step_id: i64,
        key: &Text,
        timeout: Option<Duration>,
        recipient: Recipient,
        shares_memory: bool,
    );

    /// Carries a command out once the code has returned.
    fn defer(&mut self, command: Command);

    /// Carries a command out in the next turn.
    fn defer_to_next_turn(&mut self, command: Command);
}

impl<'a> ShardContext<'a> {
    pub(crate) fn new(shard: &'a mut dyn Commands) -> Self {
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

    /// Makes a call; the result goes to `handler` on the peer's shard, after the present code has
    /// returned. For one tensor [`receive`](Self::receive) costs less.
    #[inline]
    pub fn submit(&mut self, spec: CallSpec<'_>, handler: Arc<dyn CompletionHandler>, token: u64) {
        self.shard.submit(spec, Recipient { handler, token });
    }

    /// Calls a function of a peer, as [`submit`](Self::submit) does with
    /// [`Request::StarRunGraph`], and leaves the call to its caller, who may make it again: then
    /// nothing is allocated for it.
    #[inline]
    pub fn run(
        &mut self,
        peer: impl Borrow<Peer>,
        call: &GraphCall,
        timeout: Option<Duration>,
        handler: Arc<dyn CompletionHandler>,
        token: u64,
    ) {
        let recipient = Recipient { handler, token };
        let call = KeptCall::Graph(call);
        (self.shard).submit_kept(peer.borrow(), call, timeout, recipient);
    }

    /// Calls the method of a service that an envelope names, as [`submit`](Self::submit) does with
    /// [`Request::Unary`], and leaves the envelope to its caller, as [`run`](Self::run) does.
    #[inline]
    pub fn call_path(
        &mut self,
        peer: impl Borrow<Peer>,
        envelope: &Envelope,
        timeout: Option<Duration>,
        handler: Arc<dyn CompletionHandler>,
        token: u64,
    ) {
        let recipient = Recipient { handler, token };
        let call = KeptCall::Path(envelope);
        (self.shard).submit_kept(peer.borrow(), call, timeout, recipient);
    }

    /// Asks a peer for one tensor by rendezvous key, as [`submit`](Self::submit) does with
    /// [`Request::RecvTensor`]. There is no request to build and drop, and the type of the handler
    /// is known where it says whether it brings memory, so a small call costs its caller some 60
    /// instructions of 700 less. A handler that is known as `dyn CompletionHandler` alone takes
    /// [`submit`](Self::submit).
    #[inline]
    pub fn receive(
        &mut self,
        peer: impl Borrow<Peer>,
        step_id: i64,
        key: &Text,
        timeout: Option<Duration>,
        handler: Arc<impl CompletionHandler + 'static>,
        token: u64,
    ) {
        let shares_memory = !handler.allocates(token);
        let recipient = Recipient { handler, token };
        let peer = peer.borrow();
        (self.shard).receive(peer, step_id, key, timeout, recipient, shares_memory);
    }

    /// Puts a tensor into a step of this task, where a receiver will find it. A key that is taken
    /// or a step that was aborted drops the tensor and counts it.
    pub fn send(&mut self, step_id: i64, key: Text, tensor: Tensor) {
        self.shard.defer(Command::Send {
            step_id,
            key,
            tensor,
            origin: None,
        });
    }

    /// Fails all receives of a step whose home is this shard, those that wait and those to come,
    /// with `status`.
    pub fn abort_step(&mut self, step_id: i64, status: Status) {
        self.shard.defer(Command::Abort {
            step_id,
            status,
            origin: None,
        });
    }

    /// Removes a step whose home is this shard with all its tensors; receives that wait fail with
    /// `ABORTED`.
    pub fn cleanup_step(&mut self, step_id: i64) {
        self.shard.defer(Command::Cleanup {
            step_id,
            origin: None,
        });
    }

    /// Closes the connection to a peer of this shard, if there is one. Calls on it fail with
    /// `UNAVAILABLE`.
    pub fn disconnect(&mut self, peer: &Peer) {
        self.shard.defer(Command::Disconnect { peer: peer.clone() });
    }

    /// Runs code in the next turn, when what this one has sent is on its way. The shard does not
    /// sleep before. Any thread may turn it then.
    pub fn run_next_turn(&mut self, code: impl FnOnce(&mut ShardContext<'_>) + Send + 'static) {
        let command = Command::RunAnywhere(Box::new(code));
        self.shard.defer_to_next_turn(command);
    }

    /// Number of shards of the engine.
    pub fn shards(&self) -> usize {
        self.shard.shards()
    }
}

/// In place of a shard that is gone: its calls end with the engine, and nothing else is carried
/// out.
impl Commands for VecDeque<Command> {
    fn index(&self) -> usize {
        0
    }

    fn now(&self) -> Time {
        Time::ZERO
    }

    fn shards(&self) -> usize {
        0
    }

    fn submit(&mut self, spec: CallSpec<'_>, recipient: Recipient) {
        let completion = Completion::new(Target::Handler(recipient));
        self.defer(Command::Call(NewCall::new(spec, completion, None)));
    }

    fn receive(
        &mut self,
        peer: &Peer,
        step_id: i64,
        key: &Text,
        timeout: Option<Duration>,
        recipient: Recipient,
        _shares_memory: bool,
    ) {
        let key = key.clone();
        let request = Request::RecvTensor { step_id, key };
        self.submit_request(peer, request, timeout, recipient);
    }

    fn defer(&mut self, command: Command) {
        self.push_back(command);
    }

    fn defer_to_next_turn(&mut self, command: Command) {
        self.defer(command);
    }
}
