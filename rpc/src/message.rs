use grpcxx_memory::Buffer;
use smallvec::SmallVec;

use crate::{KeyList, Method, Tensor, Text};

/// What a caller asks of a peer.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// A method whose request is one protobuf message.
    Message {
        /// Any method but `RecvTensor`, `FuseRecvTensor` and `StarRunGraph`.
        method: Method,
        /// The message, serialized.
        body: Buffer,
    },
    /// One tensor by rendezvous key.
    RecvTensor {
        /// The step.
        step_id: i64,
        /// The whole rendezvous key.
        key: Text,
    },
    /// Several tensors of one step, answered together in the order of the keys.
    FuseRecvTensor {
        /// The step.
        step_id: i64,
        /// The whole rendezvous keys, at least one.
        keys: KeyList,
    },
    /// Tensors in by name, a function to run on them, tensors out by name.
    StarRunGraph(Box<GraphCall>),
}

/// A call of a named function with tensors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GraphCall {
    /// The function: a graph that was registered, or the name of a registered function.
    pub graph_handle: Text,
    /// The step.
    pub step_id: u64,
    /// Tensors in, by name (in TensorFlow a rendezvous key).
    pub feeds: Vec<(Text, Tensor)>,
    /// Names of the tensors to return, each once.
    pub fetches: Vec<Text>,
    /// How many subgraphs of this step run on this task; 0 or 1 where steps mean nothing.
    pub ps_graph_count: i32,
    /// Whether the callee shall trace the call.
    pub should_trace: bool,
}

/// What a peer answers when it succeeds.
#[derive(Clone, Debug, PartialEq)]
pub enum Response {
    /// One protobuf message, serialized; empty if it has no fields.
    Message(Buffer),
    /// The tensors asked for, in the order of the keys.
    Tensors(SmallVec<[Tensor; 1]>),
    /// The tensors asked for, by name.
    Fetched(Vec<(Text, Tensor)>),
}

impl From<Tensor> for Response {
    #[inline]
    fn from(tensor: Tensor) -> Self {
        Self::Tensors(SmallVec::from_buf([tensor]))
    }
}

impl Request {
    /// The method that carries this request.
    pub fn method(&self) -> Method {
        match self {
            Self::Message { method, .. } => *method,
            Self::RecvTensor { .. } => Method::RecvTensor,
            Self::FuseRecvTensor { .. } => Method::FuseRecvTensor,
            Self::StarRunGraph(_) => Method::StarRunGraph,
        }
    }
}
