use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use futures_channel::oneshot;
use grpcxx_memory::BufferMut;
use grpcxx_rpc::{Status, TensorMeta};

use crate::blame::{A_HANDLER, Blame};
use crate::call::{CallResult, CompletionHandler};
use crate::command::Command;
use crate::fate::stopped;
use crate::shard::ShardContext;

/// Where the result of a call goes.
#[derive(Default)]
pub(crate) enum Target {
    #[default]
    Nobody,
    Handler(Recipient),
    Future(oneshot::Sender<CallResult>),
}

/// Who takes the result of a call on the shard, and by which token it knows the call.
pub(crate) struct Recipient {
    pub(crate) handler: Arc<dyn CompletionHandler>,
    pub(crate) token: u64,
}

/// A target that gets a result in any case, also if the call is dropped with the queue it waits in.
#[derive(Debug)]
pub(crate) struct Completion(Target);

impl Target {
    /// Ends the call, or gives the result back if its caller has gone already.
    #[inline(always)]
    #[expect(
        clippy::result_large_err,
        reason = "the result comes back whole, without an allocation"
    )]
    pub(crate) fn complete(
        self,
        result: CallResult,
        context: &mut ShardContext<'_>,
    ) -> Result<(), CallResult> {
        match self {
            Self::Handler(Recipient { handler, token }) => {
                let blame = Blame::on(A_HANDLER);
                handler.on_complete(token, result, context);
                blame.lift();
                Ok(())
            }
            Self::Future(sender) => sender.send(result),
            Self::Nobody => Err(result),
        }
    }

    /// Whether the caller may bring memory of its own.
    #[inline]
    pub(crate) fn allocates(&self) -> bool {
        match self {
            Self::Handler(recipient) => recipient.allocates(),
            Self::Future(_) | Self::Nobody => false,
        }
    }

    /// The caller's own memory for a tensor of the response, if it brings any.
    pub(crate) fn allocate(
        &self,
        index: usize,
        meta: &TensorMeta,
    ) -> Option<Result<BufferMut, Status>> {
        match self {
            Self::Handler(recipient) => recipient.allocate(index, meta),
            Self::Future(_) | Self::Nobody => None,
        }
    }
}

impl Recipient {
    /// Whether it may bring memory of its own.
    #[inline]
    pub(crate) fn allocates(&self) -> bool {
        self.handler.allocates(self.token)
    }

    /// Its own memory for a tensor of the response, if it brings any.
    pub(crate) fn allocate(
        &self,
        index: usize,
        meta: &TensorMeta,
    ) -> Option<Result<BufferMut, Status>> {
        let blame = Blame::on(A_HANDLER);
        let memory = self.handler.allocate(self.token, index, meta);
        blame.lift();
        memory
    }
}

impl Completion {
    pub(crate) fn new(target: Target) -> Self {
        Self(target)
    }

    pub(crate) fn handler(handler: Arc<dyn CompletionHandler>, token: u64) -> Self {
        Self(Target::Handler(Recipient { handler, token }))
    }

    pub(crate) fn future(sender: oneshot::Sender<CallResult>) -> Self {
        Self(Target::Future(sender))
    }

    /// Whether any thread that turns the shard may hear of the end.
    pub(crate) fn runs_anywhere(&self) -> bool {
        match &self.0 {
            Target::Handler(recipient) => recipient.handler.runs_anywhere(),
            Target::Future(_) | Target::Nobody => true,
        }
    }

    /// Whoever takes the target answers for the result.
    pub(crate) fn into_target(mut self) -> Target {
        std::mem::take(&mut self.0)
    }

    /// Ends the call outside of a shard. Calls that its handler makes now have the same fate.
    pub(crate) fn end(self, status: Status) {
        match self.into_target() {
            Target::Handler(recipient) => end(recipient, &status),
            // If the caller has gone, nobody wants to hear.
            Target::Future(sender) => drop(sender.send(Err(status))),
            Target::Nobody => {}
        }
    }

    /// Takes the call back: nobody hears of it.
    pub(crate) fn withdraw(self) {
        drop(self.into_target());
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        // A future learns from its channel.
        if let Target::Handler(recipient) = std::mem::take(&mut self.0) {
            end(recipient, &stopped());
        }
    }
}

/// Tells a handler that its call has ended with the engine.
#[cold]
fn end(Recipient { handler, token }: Recipient, status: &Status) {
    let mut orders = VecDeque::new();
    let context = &mut ShardContext::new(&mut orders);
    handler.on_complete(token, Err(status.clone()), context);
    // Calls that handlers make now have the same fate; one that repeats each call has no end.
    for _ in 0..CALLS_BEHIND_THE_END {
        match orders.pop_front() {
            Some(Command::Call(call)) => {
                let context = &mut ShardContext::new(&mut orders);
                let target = call.completion.into_target();
                let _nobody_waits = target.complete(Err(status.clone()), context);
            }
            Some(_) => {}
            None => return,
        }
    }
    for order in orders {
        if let Command::Call(call) = order {
            call.completion.withdraw();
        }
    }
}

impl fmt::Debug for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recipient")
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Handler(_) => "Handler",
            Self::Future(_) => "Future",
            Self::Nobody => "Nobody",
        })
    }
}

/// Most calls that are ended because handlers made them while their own calls ended with the
/// engine.
const CALLS_BEHIND_THE_END: usize = 64;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use grpcxx_rpc::{Code, Method, Request, Text};

    use super::*;
    use crate::call::CallSpec;
    use crate::client::Peer;

    /// Makes the same call again whenever it ends.
    #[derive(Default)]
    struct Stubborn {
        heard: AtomicUsize,
    }

    impl CompletionHandler for Stubborn {
        fn on_complete(
            self: Arc<Self>,
            token: u64,
            result: CallResult,
            shard: &mut ShardContext<'_>,
        ) {
            assert_eq!(result.unwrap_err().code, Code::Unavailable);
            self.heard.fetch_add(1, Ordering::Relaxed);
            let request = Request::Message {
                method: Method::GetStatus,
                body: grpcxx_memory::Buffer::new(),
            };
            let peer = Peer::own(0);
            match token {
                7 => shard.submit(CallSpec::new(&peer, request), self, 8),
                _ => shard.receive(&peer, 1, &Text::from("key"), None, self, 7),
            }
        }
    }

    #[test]
    fn a_dropped_call_ends_and_one_that_is_repeated_for_ever_too() {
        let sink = Arc::new(Stubborn::default());
        drop(Completion::handler(sink.clone(), 7));
        let heard = sink.heard.load(Ordering::Relaxed);
        assert_eq!(heard, 1 + CALLS_BEHIND_THE_END);
        assert_eq!(Arc::strong_count(&sink), 1);
    }

    #[test]
    fn a_call_that_was_taken_back_is_not_heard_of() {
        let sink = Arc::new(Stubborn::default());
        Completion::handler(sink.clone(), 7).withdraw();
        assert_eq!(sink.heard.load(Ordering::Relaxed), 0);
    }
}
