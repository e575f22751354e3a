//! Functions that are futures: they run on the shard that took the call in, beside its own work.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use grpcxx_rpc::{Code, Fetched, GraphCall, NamedTensors, Response, Status};
use tracing::Instrument;

use super::{Function, HoldWatch, Responder, answer_once, panicked};
use crate::sharded::Shards;

/// A closure that returns a future of its results.
pub(crate) struct AsyncFunction {
    shards: Shards,
    begin: Arc<Begin>,
    watch: Arc<HoldWatch>,
}

type Results = Result<NamedTensors, Status>;
type Begin = dyn Fn(GraphCall) -> Pin<Box<dyn Future<Output = Results>>> + Send + Sync;

impl AsyncFunction {
    /// `shards` are those of the engine that serves the calls.
    pub(crate) fn new<F, T, R>(shards: Shards, watch: HoldWatch, function: F) -> Self
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
            shards,
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
        let shard = responder.shard();
        let Some(spawner) = shard.and_then(|shard| self.shards.spawners().get(shard)) else {
            return responder.answer(Err(refused()));
        };
        let (begin, watch) = (Arc::clone(&self.begin), Arc::clone(&self.watch));
        let span = responder.span();
        // A refused job is dropped, and the call needs its answer then too.
        let responder = Arc::new(Mutex::new(Some(responder)));
        let taken = Arc::clone(&responder);
        let job = move || async move {
            // The closure runs inside the guard as well, since it may panic before there is a
            // future.
            let results = AssertUnwindSafe(async { begin(call).await }).catch_unwind();
            let results = watch
                .poll(results.instrument(span))
                .await
                .unwrap_or_else(|panic| Err(panicked(&*panic)));
            answer_once(&taken, results.map(Response::Fetched));
        };
        if spawner.spawn_local(job).is_err() {
            answer_once(&responder, Err(refused()));
        }
    }

    fn may_block(&self) -> bool {
        false
    }
}

fn refused() -> Status {
    Status::new(
        Code::ResourceExhausted,
        "the shard takes no more asynchronous functions now; try again later",
    )
}
