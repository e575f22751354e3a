//! What is asked, and what is answered.

use grpcxx_memory::Buffer;
use smallvec::SmallVec;

use crate::fetched::find;
use crate::wire::{STREAM_OPEN_METHOD, UNARY_METHOD};
use crate::{Envelope, KeyList, Method, Status, Tensor, Text, TraceContext};

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
    /// A method of a service by its path. To a peer that does not know them it goes as a graph
    /// call, and is answered as one.
    Unary(Box<Envelope>),
    /// A method of a service that streams, by its path; the envelope has no message. It is answered
    /// with an envelope without a message too, behind all that it has sent.
    Stream(Box<Envelope>),
}

/// Tensors by name. One alone needs no memory of its own, since most calls have no more; many are
/// made of a vector with `into()`.
pub type NamedTensors = SmallVec<[(Text, Tensor); 1]>;

/// Names of tensors, kept as [`NamedTensors`] are.
pub type Names = SmallVec<[Text; 1]>;

/// A call of a named function with tensors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GraphCall {
    /// The function: a graph that was registered, or the name of a registered function.
    pub graph_handle: Text,
    /// The step.
    pub step_id: u64,
    /// Tensors in, by name (in TensorFlow a rendezvous key).
    pub feeds: NamedTensors,
    /// Names of the tensors to return, each once.
    pub fetches: Names,
    /// How many subgraphs of this step run on this task; 0 or 1 where steps mean nothing.
    pub ps_graph_count: i32,
    /// Whether the callee shall trace the call.
    pub should_trace: bool,
    /// The span that the call was made in. A peer that does not know of it is not told.
    pub trace: Option<TraceContext>,
}

impl GraphCall {
    /// Notes that a user has the tensors, who may fork ([`Buffer::expose`]).
    pub fn expose(&self) {
        self.feeds
            .iter()
            .for_each(|(_, tensor)| tensor.data.expose());
    }

    /// A call of the function `name`, without tensors yet.
    pub fn new(name: impl Into<Text>) -> Self {
        Self {
            graph_handle: name.into(),
            ..Self::default()
        }
    }

    /// Adds a tensor that the function gets as `name`.
    #[must_use]
    pub fn with_feed(mut self, name: impl Into<Text>, tensor: Tensor) -> Self {
        self.feeds.push((name.into(), tensor));
        self
    }

    /// Asks for the result `name`.
    #[must_use]
    pub fn with_fetch(mut self, name: impl Into<Text>) -> Self {
        self.fetches.push(name.into());
        self
    }

    /// Makes the call part of a step.
    #[must_use]
    pub fn with_step(mut self, step_id: u64) -> Self {
        self.step_id = step_id;
        self
    }

    /// The tensor that came as `name`.
    ///
    /// # Errors
    /// `NOT_FOUND` with the names that came.
    pub fn feed(&self, name: &str) -> Result<&Tensor, Status> {
        find(&self.feeds, name, "feeds").map(|place| &self.feeds[place].1)
    }

    /// Takes the tensor that came as `name`, so that it need not be cloned.
    ///
    /// # Errors
    /// `NOT_FOUND` with the names that are left.
    pub fn take_feed(&mut self, name: &str) -> Result<Tensor, Status> {
        let place = find(&self.feeds, name, "feeds")?;
        Ok(self.feeds.swap_remove(place).1)
    }
}

/// What a peer answers when it succeeds.
#[derive(Clone, Debug, PartialEq)]
pub enum Response {
    /// One protobuf message, serialized; empty if it has no fields.
    Message(Buffer),
    /// The tensors asked for, in the order of the keys.
    Tensors(SmallVec<[Tensor; 1]>),
    /// The tensors asked for, by name.
    Fetched(NamedTensors),
    /// The message that a method of a service answers with.
    Unary(Envelope),
}

impl Response {
    /// Notes that a user has the tensors, who may fork ([`Buffer::expose`]).
    pub fn expose(&self) {
        match self {
            Self::Tensors(tensors) => tensors.iter().for_each(|tensor| tensor.data.expose()),
            Self::Fetched(fetched) => fetched.iter().for_each(|(_, tensor)| tensor.data.expose()),
            Self::Message(body) => body.expose(),
            Self::Unary(envelope) => envelope.expose(),
        }
    }
}

impl From<Tensor> for Response {
    #[inline]
    fn from(tensor: Tensor) -> Self {
        Self::Tensors(SmallVec::from_buf([tensor]))
    }
}

impl Request {
    /// The method of star that carries this request, if there is one.
    pub fn method(&self) -> Option<Method> {
        match self {
            Self::Message { method, .. } => Some(*method),
            Self::RecvTensor { .. } => Some(Method::RecvTensor),
            Self::FuseRecvTensor { .. } => Some(Method::FuseRecvTensor),
            Self::StarRunGraph(_) => Some(Method::StarRunGraph),
            Self::Unary(_) | Self::Stream(_) => None,
        }
    }

    /// The number of the method on the wire.
    pub fn method_number(&self) -> i32 {
        match self {
            Self::Stream(_) => STREAM_OPEN_METHOD,
            _ => self.method().map_or(UNARY_METHOD, Method::number),
        }
    }
}
