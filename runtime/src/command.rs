use std::net::SocketAddr;
use std::ops::Deref;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use grpcxx_rpc::{Account, GraphCall, KeyList, RequestId, Status, Tensor, Text};
pub(crate) use grpcxx_transport::SlotId;
use grpcxx_transport::Time;
use smallvec::SmallVec;

use crate::call::{CallResult, CallSpec};
use crate::client::{Found, Peer, PeerState};
use crate::completion::Completion;
use crate::fate::Fate;
use crate::inspection::ShardInspection;
use crate::latency::ShardCalls;
use crate::service::StreamEnds;
use crate::shard::ShardContext;
use crate::watch::RequestWatch;

/// The keys of one receive.
#[derive(Clone, Debug)]
pub(crate) enum Keys {
    One(Text),
    Many(KeyList),
}

impl Deref for Keys {
    type Target = [Text];

    #[inline]
    fn deref(&self) -> &[Text] {
        match self {
            Self::One(key) => slice::from_ref(key),
            Self::Many(keys) => keys,
        }
    }
}

/// What a shard is asked to do, by another shard or by a thread outside.
pub(crate) enum Command {
    /// Make a call on the shard that owns the peer.
    Call(NewCall),
    /// Forget a call made by a future that was dropped.
    Cancel { number: u64 },
    /// Deliver the answer to a request on the shard where it came from.
    Answer {
        origin: Origin,
        result: CallResult,
        taken: Option<Taken>,
    },
    /// Let somebody hear what becomes of a request, on the shard where it came from.
    Watch {
        origin: Origin,
        watch: Arc<dyn RequestWatch>,
    },
    /// Receive from a step, on its home shard.
    Receive {
        origin: Origin,
        step_id: i64,
        keys: Keys,
    },
    /// Nobody waits for this receive any more.
    Forget { origin: Origin },
    /// Put a tensor into a step, on its home shard.
    Send {
        step_id: i64,
        key: Text,
        tensor: Tensor,
        origin: Option<Origin>,
    },
    /// Put tensors back whose answer never left.
    Restore {
        step_id: i64,
        keys: Keys,
        tensors: SmallVec<[Tensor; 1]>,
    },
    /// Fail a step, on its home shard.
    Abort {
        step_id: i64,
        status: Status,
        origin: Option<Origin>,
    },
    /// Fail all steps of this shard.
    AbortAll { status: Status },
    /// Remove a step, on its home shard.
    Cleanup {
        step_id: i64,
        origin: Option<Origin>,
    },
    /// One graph call of a step is done; the last one removes the step.
    GraphDone(GraphDone),
    /// Tell what is known of a peer, on the shard that owns it.
    Inspect {
        peer: Peer,
        tell: Box<dyn FnOnce(PeerState) + Send>,
    },
    /// Tell how long calls and requests took on this shard.
    Calls {
        tell: Box<dyn FnOnce(ShardCalls) + Send>,
    },
    /// Tell what waits on this shard.
    InspectShard {
        tell: Box<dyn FnOnce(ShardInspection) + Send>,
    },
    /// Say in the log that a request waits long, on the shard where it came from.
    WaitsLong(WaitsLong),
    /// Close the connection to a peer, on the shard that owns it.
    Disconnect { peer: Peer },
    /// Dial the peer in this slot at the addresses that its name has now.
    Resolved { slot: usize, found: Found },
    /// The user of a stream has done something.
    Stream(Bells),
    /// Run code on the thread of the shard.
    Run(Box<dyn FnOnce(&mut ShardContext<'_>) + Send>),
    /// Run code on whatever thread turns the shard.
    RunAnywhere(Box<dyn FnOnce(&mut ShardContext<'_>) + Send>),
    /// Stop listening, answer what is in flight, close all links.
    Stop { grace: Duration },
}

/// A request that has waited long for a tensor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WaitsLong {
    pub(crate) origin: Origin,
    pub(crate) step_id: i64,
    /// The first key whose tensor is not there.
    pub(crate) key: Text,
    pub(crate) waited: Duration,
}

/// The end of a graph call that belongs to a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GraphDone {
    pub(crate) step_id: i64,
    pub(crate) ps_graph_count: i32,
    /// Who made the call.
    pub(crate) account: Account,
}

impl GraphDone {
    /// What the end of this call is to the step that it belongs to, if there is one.
    pub(crate) fn of(call: &GraphCall, account: Account) -> Option<Self> {
        (call.ps_graph_count > 0).then_some(Self {
            step_id: call.step_id as i64,
            ps_graph_count: call.ps_graph_count,
            account,
        })
    }
}

/// A call that no shard has taken up yet.
pub(crate) struct NewCall {
    pub(crate) peer: Peer,
    pub(crate) request: grpcxx_rpc::Request,
    pub(crate) timeout: Option<Duration>,
    pub(crate) completion: Completion,
    /// Set for calls that can be cancelled from outside.
    pub(crate) cancellable: Option<Cancellable>,
    /// The shard's part of a call that streams.
    pub(crate) stream: Option<Box<StreamEnds>>,
}

impl NewCall {
    pub(crate) fn new(
        spec: CallSpec<'_>,
        completion: Completion,
        cancellable: Option<Cancellable>,
    ) -> Self {
        Self {
            peer: spec.peer.clone(),
            request: spec.request,
            timeout: spec.timeout,
            completion,
            cancellable,
            stream: None,
        }
    }
}

/// How a call hears that it was cancelled.
pub(crate) struct Cancellable {
    /// Unique within the engine.
    pub(crate) number: u64,
    /// Set when it was cancelled before its shard has heard of it.
    pub(crate) flag: Option<Arc<AtomicBool>>,
}

impl Cancellable {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.flag
            .as_ref()
            .is_some_and(|flag| flag.load(Ordering::SeqCst))
    }
}

/// A connection that a peer made, on its way to the shard that serves it.
pub(crate) struct AcceptedConnection<A> {
    pub(crate) peer: SocketAddr,
    pub(crate) accepted: A,
}

/// What a shard hands to another one.
pub(crate) enum MeshMessage<A> {
    Command(Command),
    Adopt(AcceptedConnection<A>),
}

/// Tensors that an answer took out of a step, so that they can be put back.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) step_id: i64,
    pub(crate) keys: Keys,
}

/// Where a request came from, and so where its answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    /// A request from a peer.
    Link {
        shard: u16,
        server: SlotId,
        request: RequestId,
    },
    /// A call of this process to itself.
    Local { shard: u16, call: SlotId },
}

/// Whose stream it is that has something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bells {
    /// A call, by the number that its caller knows.
    Call(u64),
    /// A request.
    Request(Origin),
}

impl Origin {
    pub(crate) fn shard(self) -> usize {
        match self {
            Self::Link { shard, .. } | Self::Local { shard, .. } => usize::from(shard),
        }
    }
}

impl Command {
    /// Whether code of a program comes with it that may rely on the thread of the shard.
    pub(crate) fn needs_owner(&self) -> bool {
        match self {
            Self::Run(_)
            | Self::Inspect { .. }
            | Self::Calls { .. }
            | Self::InspectShard { .. } => true,
            Self::Call(call) => !call.completion.runs_anywhere(),
            _ => false,
        }
    }

    /// Ends a command that nobody carries out, as the fate of the engine says. Those that somebody
    /// waits for are calls, and who watches a request hears that nobody wants it any more; whoever
    /// waits for anything else learns when it is dropped.
    pub(crate) fn end(self, fate: &Fate) {
        match self {
            Self::Call(call) => call.completion.end(fate.status()),
            Self::Watch { watch, .. } => watch.withdrawn(),
            _ => {}
        }
    }
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Call(_) => "Call",
            Self::Cancel { .. } => "Cancel",
            Self::Answer { .. } => "Answer",
            Self::Receive { .. } => "Receive",
            Self::Watch { .. } => "Watch",
            Self::Forget { .. } => "Forget",
            Self::Send { .. } => "Send",
            Self::Restore { .. } => "Restore",
            Self::Abort { .. } => "Abort",
            Self::AbortAll { .. } => "AbortAll",
            Self::Cleanup { .. } => "Cleanup",
            Self::GraphDone(_) => "GraphDone",
            Self::Inspect { .. } => "Inspect",
            Self::Calls { .. } => "Calls",
            Self::WaitsLong(_) => "WaitsLong",
            Self::InspectShard { .. } => "InspectShard",
            Self::Disconnect { .. } => "Disconnect",
            Self::Resolved { .. } => "Resolved",
            Self::Stream(_) => "Stream",
            Self::Run(_) => "Run",
            Self::RunAnywhere(_) => "RunAnywhere",
            Self::Stop { .. } => "Stop",
        })
    }
}

/// The later of a relative timeout's end and never.
pub(crate) fn deadline(now: Time, timeout: Option<Duration>) -> Option<Time> {
    timeout.map(|timeout| now + timeout)
}

/// Names of tensors and functions that all shards see, replaced as a whole when they change.
pub(crate) type Shared<T> = Arc<arc_swap::ArcSwap<T>>;
