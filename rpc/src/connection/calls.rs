//! The calls of a client: what callers say of them, and how far each has come.

use grpcxx_transport::{SlotId, Time};

use crate::{Names, Request, Response, Status};

/// A call of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub(crate) SlotId);

/// What a caller says about a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallOptions {
    /// The caller's own mark, given to [`Landings`](crate::connection::Landings) and returned in
    /// [`Finished`].
    pub token: u64,
    /// When the call fails with `DEADLINE_EXCEEDED`, if it has no result by then.
    pub deadline: Option<Time>,
    /// Whether the data of a small tensor may share memory with that of others that come with it,
    /// of up to 2 KiB. [`Landings::tensor`](crate::connection::Landings::tensor) is not asked then,
    /// but [`Landings::block`](crate::connection::Landings::block).
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
    pub(crate) state: CallState,
    /// Whether the data of its tensor may share memory with that of others.
    pub(crate) shares_memory: bool,
    /// Whether the peer ends the call at its deadline by itself.
    pub(crate) is_deadline_sent: bool,
}

/// Where a call is. It leaves its table when its response is complete, or its request is withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallState {
    /// Its request waits for the link.
    Queued,
    /// The link has its request, or will in any case.
    Sent,
    /// Its response has begun.
    Answered,
    /// Its caller has a result, and its request waits for the link, which does not get it.
    Withdrawn,
    /// Its caller has a result, and its response is still to come.
    Abandoned,
    /// Its caller has a result, and its response has begun, to be dropped.
    Unwanted,
}

/// What a successful response consists of.
#[derive(Debug)]
pub(crate) enum Expected {
    Announcement,
    Message,
    Tensors { count: usize },
    Fetched { names: Names },
    Unary,
    Stream { number: u32 },
}

impl CallId {
    /// The call's tag on the wire: slot and generation.
    pub fn tag(self) -> u64 {
        self.0.raw()
    }
}

impl Call {
    /// Whether its response may begin, and is one tensor.
    #[inline]
    pub(crate) fn awaits_tensor(&self) -> bool {
        self.state.awaits_response() && matches!(self.expected, Expected::Tensors { count: 1 })
    }

    /// Whether it awaits a tensor that its caller still waits for, and whose data may share memory.
    /// State and flag are compared together, which costs one look where they lie side by side.
    #[inline(always)]
    pub(crate) fn awaits_shared_tensor(&self) -> bool {
        (self.state, self.shares_memory) == (CallState::Sent, true)
            && matches!(self.expected, Expected::Tensors { count: 1 })
    }
}

impl CallState {
    /// Whether the caller has its result.
    pub(crate) fn has_ended(self) -> bool {
        match self {
            Self::Queued | Self::Sent | Self::Answered => false,
            Self::Withdrawn | Self::Abandoned | Self::Unwanted => true,
        }
    }

    /// Whether the link has the request, or will in any case.
    pub(crate) fn is_sent(self) -> bool {
        match self {
            Self::Queued | Self::Withdrawn => false,
            Self::Sent | Self::Answered | Self::Abandoned | Self::Unwanted => true,
        }
    }

    /// Whether the response may begin.
    pub(crate) fn awaits_response(self) -> bool {
        match self {
            Self::Sent | Self::Abandoned => true,
            Self::Queued | Self::Answered | Self::Withdrawn | Self::Unwanted => false,
        }
    }

    /// The link takes the request.
    pub(crate) fn send(&mut self) {
        *self = match *self {
            Self::Queued => Self::Sent,
            Self::Withdrawn => Self::Abandoned,
            sent @ (Self::Sent | Self::Answered | Self::Abandoned | Self::Unwanted) => sent,
        }
    }

    /// The link does not take the request after all.
    pub(crate) fn unsend(&mut self) {
        *self = match *self {
            Self::Sent => Self::Queued,
            Self::Abandoned => Self::Withdrawn,
            other @ (Self::Queued | Self::Answered | Self::Withdrawn | Self::Unwanted) => other,
        }
    }

    /// The response begins.
    pub(crate) fn answer(&mut self) {
        *self = match *self {
            Self::Sent => Self::Answered,
            Self::Abandoned => Self::Unwanted,
            other @ (Self::Queued | Self::Answered | Self::Withdrawn | Self::Unwanted) => other,
        }
    }

    /// The caller gets a result before the response is complete.
    pub(crate) fn end(&mut self) {
        *self = match *self {
            Self::Queued => Self::Withdrawn,
            Self::Sent => Self::Abandoned,
            Self::Answered => Self::Unwanted,
            ended @ (Self::Withdrawn | Self::Abandoned | Self::Unwanted) => ended,
        }
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
            Request::Unary(_) | Request::Stream(_) => Self::Unary,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CallState::{self, *};

    #[test]
    fn each_state_has_its_transitions() {
        let table = [
            // State, and what follows send, unsend, answer and end.
            (Queued, [Sent, Queued, Queued, Withdrawn]),
            (Sent, [Sent, Queued, Answered, Abandoned]),
            (Answered, [Answered, Answered, Answered, Unwanted]),
            (Withdrawn, [Abandoned, Withdrawn, Withdrawn, Withdrawn]),
            (Abandoned, [Abandoned, Withdrawn, Unwanted, Abandoned]),
            (Unwanted, [Unwanted, Unwanted, Unwanted, Unwanted]),
        ];
        let events = [
            CallState::send,
            CallState::unsend,
            CallState::answer,
            CallState::end,
        ];
        for (state, followers) in table {
            for (event, follower) in events.into_iter().zip(followers) {
                let mut after = state;
                event(&mut after);
                assert_eq!(after, follower, "{state:?}");
                // A caller has one result, and a response one beginning.
                assert!(after.has_ended() >= state.has_ended());
                assert!(!after.awaits_response() || state.awaits_response() || !state.is_sent());
            }
        }
    }
}
