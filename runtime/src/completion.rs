use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use futures_channel::oneshot;
use grpcxx_memory::BufferMut;
use grpcxx_rpc::{Code, Status, TensorMeta};

use crate::call::{CallResult, CallSink};
use crate::command::Command;
use crate::shard::ShardContext;

/// Where the result of a call goes. It gets exactly one, also if the call is dropped with the queue it waits in.
pub(crate) struct Completion(Option<Target>);

enum Target {
    Sink { sink: Arc<dyn CallSink>, token: u64 },
    Future(oneshot::Sender<CallResult>),
}

impl Completion {
    pub(crate) fn sink(sink: Arc<dyn CallSink>, token: u64) -> Self {
        Self(Some(Target::Sink { sink, token }))
    }

    pub(crate) fn future(sender: oneshot::Sender<CallResult>) -> Self {
        Self(Some(Target::Future(sender)))
    }

    /// Ends the call, or gives the result back if its caller has gone already.
    pub(crate) fn complete(
        mut self,
        result: CallResult,
        context: &mut ShardContext<'_>,
    ) -> Result<(), CallResult> {
        match self.0.take() {
            Some(Target::Sink { sink, token }) => {
                sink.finished(token, result, context);
                Ok(())
            }
            Some(Target::Future(sender)) => sender.send(result),
            None => Err(result),
        }
    }

    /// Takes the call back: nobody hears of it.
    pub(crate) fn withdraw(mut self) {
        self.0 = None;
    }

    /// Whether the caller may bring memory of its own.
    pub(crate) fn allocates(&self) -> bool {
        match &self.0 {
            Some(Target::Sink { sink, token }) => sink.allocates(*token),
            Some(Target::Future(_)) | None => false,
        }
    }

    /// The caller's own memory for a tensor of the response, if it brings any.
    pub(crate) fn allocate(
        &self,
        index: usize,
        meta: &TensorMeta,
    ) -> Option<Result<BufferMut, Status>> {
        match &self.0 {
            Some(Target::Sink { sink, token }) => sink.allocate(*token, index, meta),
            Some(Target::Future(_)) | None => None,
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        // A future learns from its channel.
        let Some(Target::Sink { sink, token }) = self.0.take() else {
            return;
        };
        let mut orders = VecDeque::new();
        sink.finished(
            token,
            Err(stopped()),
            &mut ShardContext::stopped(&mut orders),
        );
        // Calls that sinks make now have the same fate; a sink that repeats each call has no end.
        for _ in 0..CALLS_BEHIND_THE_END {
            match orders.pop_front() {
                Some(Command::Call(call)) => {
                    let context = &mut ShardContext::stopped(&mut orders);
                    let _nobody_waits = call.completion.complete(Err(stopped()), context);
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
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Some(Target::Sink { .. }) => "Sink",
            Some(Target::Future(_)) => "Future",
            None => "Nobody",
        })
    }
}

/// Why a call ends whose engine is gone.
pub(crate) fn stopped() -> Status {
    Status::new(
        Code::Unavailable,
        "the engine stopped before the call ended",
    )
}

/// Most calls that are ended because sinks made them while their own calls ended with the engine.
const CALLS_BEHIND_THE_END: usize = 64;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use grpcxx_rpc::{Method, Request};

    use super::*;
    use crate::client::Peer;

    /// Makes the same call again whenever it ends.
    #[derive(Default)]
    struct Stubborn {
        heard: AtomicUsize,
    }

    impl CallSink for Stubborn {
        fn finished(self: Arc<Self>, token: u64, result: CallResult, shard: &mut ShardContext<'_>) {
            assert_eq!(result.unwrap_err().code, Code::Unavailable);
            self.heard.fetch_add(1, Ordering::Relaxed);
            let request = Request::Message {
                method: Method::GetStatus,
                body: grpcxx_memory::Buffer::new(),
            };
            shard.call(Peer::own(0), request, None, self, token);
        }
    }

    #[test]
    fn a_dropped_call_ends_and_one_that_is_repeated_for_ever_too() {
        let sink = Arc::new(Stubborn::default());
        drop(Completion::sink(sink.clone(), 7));
        let heard = sink.heard.load(Ordering::Relaxed);
        assert_eq!(heard, 1 + CALLS_BEHIND_THE_END);
        assert_eq!(Arc::strong_count(&sink), 1);
    }

    #[test]
    fn a_call_that_was_taken_back_is_not_heard_of() {
        let sink = Arc::new(Stubborn::default());
        Completion::sink(sink.clone(), 7).withdraw();
        assert_eq!(sink.heard.load(Ordering::Relaxed), 0);
    }
}
