use grpcxx_transport::{SlotId, Time};

use crate::{Request, Response, Status, Text};

/// A call of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub(crate) SlotId);

/// What a caller says about a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallOptions {
    /// The caller's own mark, given to [`Landings`](crate::connection::Landings) and returned in [`Finished`].
    pub token: u64,
    /// When the call fails with `DEADLINE_EXCEEDED`, if it has no result by then.
    pub deadline: Option<Time>,
    /// Whether the data of a small tensor may share memory with that of others that come with it, of up to 2 KiB.
    /// [`Landings::tensor`](crate::connection::Landings::tensor) is not asked then, but [`Landings::block`](crate::connection::Landings::block).
    pub shares_memory: bool,
}

/// How a call ended.
#[derive(Debug, PartialEq)]
pub struct Finished {
    /// The call.
    pub call: CallId,
    /// The caller's mark.
    pub token: u64,
    /// The peer's answer, or why there is none.
    pub result: Result<Response, Status>,
}

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) token: u64,
    pub(crate) expected: Expected,
    /// Whether the link has taken the request, or will in any case.
    pub(crate) is_sent: bool,
    /// Whether the caller has its result, so that only the response is missing.
    pub(crate) is_ended: bool,
    /// Whether its response has begun.
    pub(crate) is_answered: bool,
    /// Whether the data of its tensor may share memory with that of others.
    pub(crate) shares_memory: bool,
    /// Whether the peer ends the call at its deadline by itself.
    pub(crate) is_deadline_sent: bool,
}

/// What a successful response consists of.
#[derive(Debug)]
pub(crate) enum Expected {
    Announcement,
    Message,
    Tensors { count: usize },
    Fetched { names: Vec<Text> },
}

impl CallId {
    /// The call's tag on the wire: slot and generation.
    pub fn tag(self) -> u64 {
        self.0.raw()
    }
}

impl Call {
    /// Whether its response may come, and is one tensor.
    #[inline]
    pub(crate) fn awaits_tensor(&self) -> bool {
        self.is_sent && !self.is_answered && matches!(self.expected, Expected::Tensors { count: 1 })
    }

    /// Whether it awaits a tensor that its caller still waits for, and whose data may share memory. The flags are compared
    /// together, which costs one look where they lie side by side.
    #[inline(always)]
    pub(crate) fn awaits_shared_tensor(&self) -> bool {
        let flags = [
            self.is_sent,
            self.is_ended,
            self.is_answered,
            self.shares_memory,
        ];
        flags == [true, false, false, true]
            && matches!(self.expected, Expected::Tensors { count: 1 })
    }
}

impl Expected {
    pub(crate) fn of(request: Request) -> Self {
        match request {
            Request::Message { .. } => Self::Message,
            Request::RecvTensor { .. } => Self::Tensors { count: 1 },
            Request::FuseRecvTensor { keys, .. } => Self::Tensors { count: keys.len() },
            Request::StarRunGraph(call) => Self::Fetched {
                names: call.fetches,
            },
        }
    }
}
