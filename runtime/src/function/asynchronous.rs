//! Functions that are futures: they run on the shard that took the call in, beside its own work.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::FutureExt;
use grpcxx_rpc::{Code, Fetched, GraphCall, NamedTensors, Response, Status};
use tracing::Instrument;

use super::{Function, HoldWatch, Responder, panicked};
use crate::host::Beside;

/// A closure that returns a future of its results.
pub(crate) struct AsyncFunction {
    begin: Arc<Begin>,
    watch: Arc<HoldWatch>,
}

type Results = Result<NamedTensors, Status>;
type Begin = dyn Fn(GraphCall) -> Pin<Box<dyn Future<Output = Results>>> + Send + Sync;

impl AsyncFunction {
    pub(crate) fn new<F, T, R>(watch: HoldWatch, function: F) -> Self
    where
        F: Fn(GraphCall) -> T + Send + Sync + 'static,
        T: Future<Output = Result<R, Status>> + 'static,
        R: Into<Fetched>,
    {
        let begin = move |call| {
            let future = function(call);
            let results = async move { future.await.map(|results| results.into().into()) };
            Box::pin(results) as Pin<Box<dyn Future<Output = Results>>>
        };
        Self {
            begin: Arc::new(begin),
            watch: Arc::new(watch),
        }
    }
}

impl Function for AsyncFunction {
    fn call(&self, call: GraphCall) -> Results {
        futures_executor::block_on((self.begin)(call))
    }

    fn start(&self, call: GraphCall, responder: Responder) {
        // The function binds the shards to their threads, and each call has a request's place.
        let Some(beside) = Beside::here() else {
            let text = "the shard is on its way to its thread; try again";
            return responder.answer(Err(Status::new(Code::Unavailable, text)));
        };
        let (begin, watch) = (Arc::clone(&self.begin), Arc::clone(&self.watch));
        let span = responder.span();
        beside.spawn(Box::pin(async move {
            // The closure runs inside the guard as well, since it may panic before there is a
            // future.
            let results = AssertUnwindSafe(async { begin(call).await }).catch_unwind();
            let results = watch
                .poll(results.instrument(span))
                .await
                .unwrap_or_else(|panic| Err(panicked(&*panic)));
            responder.answer(results.map(Response::Fetched));
        }));
    }

    fn may_block(&self) -> bool {
        false
    }
}
