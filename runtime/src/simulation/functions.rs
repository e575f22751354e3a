use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grpcxx_memory::BufferMut;
use grpcxx_rpc::{Account, Code, GraphCall, Request, Response, Status, Tensor, TensorMeta, Text};

use super::calls::State;
use super::model::{Watcher, fetched};
use super::service_tensors::ServiceTensors;
use super::tensors::tensor;
use crate::call::{CallResult, CallSpec, CompletionHandler};
use crate::client::Peer;
use crate::compute::{Compute, Job};
use crate::function::{AtOnce, Later, Responder, Served, Service};
use crate::shard::ShardContext;

/// Jobs that wait until the simulation runs them, in any order.
#[derive(Default)]
pub(super) struct Jobs(Mutex<Vec<Job>>);

/// Answers the calls of [`LATE`], when the simulation says so, and receives of what it keeps.
#[derive(Debug)]
pub(super) struct LateService {
    pub(super) service_tensors: ServiceTensors,
    watcher: Watcher,
    waiting: Mutex<VecDeque<Late>>,
}

/// A call that waits for its answer.
#[derive(Debug)]
pub(super) struct Late {
    pub(super) call: usize,
    pub(super) fetches: Vec<Text>,
    pub(super) responder: Responder,
}

/// Takes results of calls on the shard, and makes one more call from there if it was told to.
#[derive(Debug)]
pub(super) struct Handler {
    watcher: Watcher,
    next: Mutex<Option<NextCall>>,
    brings_memory: bool,
}

#[derive(Debug)]
pub(super) struct NextCall {
    pub(super) call: usize,
    pub(super) peer: Peer,
    pub(super) request: Request,
    pub(super) timeout: Option<Duration>,
    /// Whether a request for one tensor takes the way that has no request.
    pub(super) by_receive: bool,
}

impl Jobs {
    pub(super) fn len(&self) -> usize {
        locked(&self.0).len()
    }

    pub(super) fn take(&self, index: usize) -> Job {
        locked(&self.0).swap_remove(index)
    }

    /// Forgets all jobs, as a process does that ends.
    pub(super) fn clear(&self) {
        let jobs = std::mem::take(&mut *locked(&self.0));
        drop(jobs);
    }
}

impl Compute for Jobs {
    fn spawn(&self, _peer: Account, job: Job) {
        locked(&self.0).push(job);
    }
}

impl LateService {
    pub(super) fn new(watcher: Watcher) -> Self {
        Self {
            service_tensors: ServiceTensors::default(),
            watcher,
            waiting: Mutex::default(),
        }
    }

    pub(super) fn take(&self) -> Option<Late> {
        locked(&self.waiting).pop_front()
    }

    /// Forgets all calls, as a process does that ends.
    pub(super) fn clear(&self) {
        let waiting = std::mem::take(&mut *locked(&self.waiting));
        drop(waiting);
    }
}

impl Service for LateService {
    fn serve(&self, request: Request, later: Later<'_>) -> Served {
        match request {
            Request::StarRunGraph(call) if call.graph_handle.as_str() == LATE => {
                let (responder, served) = later.promise();
                let id = call_number(&call);
                self.watcher.model().calls.execute(id);
                locked(&self.waiting).push_back(Late {
                    call: id,
                    fetches: call.fetches.into_vec(),
                    responder,
                });
                served
            }
            request => match self.service_tensors.of(&request) {
                Some(tensors) => Served::Kept(tensors),
                None => Served::Declined(request),
            },
        }
    }

    /// Some small requests go the long way, most do not.
    fn at_once(&self, step_id: i64, key: &Text) -> AtOnce {
        match step_id % 4 {
            0 => AtOnce::Ask,
            _ => self
                .service_tensors
                .one(key)
                .map_or(AtOnce::Declined, AtOnce::Tensor),
        }
    }
}

impl Handler {
    pub(super) fn new(watcher: Watcher, brings_memory: bool, next: Option<NextCall>) -> Self {
        Self {
            watcher,
            next: Mutex::new(next),
            brings_memory,
        }
    }
}

impl CompletionHandler for Handler {
    fn on_complete(self: Arc<Self>, token: u64, result: CallResult, shard: &mut ShardContext<'_>) {
        let mut model = self.watcher.model();
        if model.calls.record(token as usize).state == State::Crashed {
            return;
        }
        model.finish(token as usize, &result);
        drop(model);
        let next = locked(&self.next).take();
        if let Some(next) = next {
            let token = next.call as u64;
            let mut model = self.watcher.model();
            let now = model.now;
            model.calls.record_mut(next.call).issued_at = now;
            drop(model);
            let (peer, timeout) = (&next.peer, next.timeout);
            match &next.request {
                Request::RecvTensor { step_id, key } if next.by_receive => {
                    shard.receive(peer, *step_id, key, timeout, self, token);
                }
                _ => {
                    let spec = CallSpec::new(peer, next.request).with_timeout(timeout);
                    shard.submit(spec, self, token);
                }
            }
        }
    }

    fn allocates(&self, _: u64) -> bool {
        self.brings_memory
    }

    fn allocate(
        &self,
        token: u64,
        _: usize,
        meta: &TensorMeta,
    ) -> Option<Result<BufferMut, Status>> {
        let state = self.watcher.model().calls.record(token as usize).state;
        assert!(
            matches!(state, State::Open | State::Crashed),
            "memory for call {token}, which is {state:?}"
        );
        self.brings_memory
            .then(|| Ok(BufferMut::zeroed(meta.data_bytes as usize)))
    }
}

/// The function called [`ECHO`]: for each fetch the bytes that belong to its name.
pub(super) fn echo(watcher: Watcher) -> impl Fn(GraphCall) -> Returned {
    move |call| {
        watcher.model().calls.execute(call_number(&call));
        Ok(outputs(&call.fetches))
    }
}

/// The function called [`FAIL`].
pub(super) fn fail(watcher: Watcher) -> impl Fn(GraphCall) -> Returned {
    move |call| {
        watcher.model().calls.execute(call_number(&call));
        Err(Status::new(Code::FailedPrecondition, "asked to fail"))
    }
}

pub(super) fn answer_late(late: Late) {
    let outputs = outputs(&late.fetches);
    late.responder.answer(Ok(Response::Fetched(outputs.into())));
}

/// The feed that says which call it is, so that functions can tell.
pub(super) fn call_feed(id: usize) -> (Text, Tensor) {
    (Text::from(CALL_FEED), Tensor::scalar(id as u64))
}

fn outputs(fetches: &[Text]) -> Vec<(Text, Tensor)> {
    let of = |name: &Text| (name.clone(), tensor(fetched(name)));
    fetches.iter().map(of).collect()
}

fn call_number(call: &GraphCall) -> usize {
    let feed = call
        .feeds
        .iter()
        .find(|(name, _)| name.as_str() == CALL_FEED);
    let bytes = feed.expect("each call says its number").1.data[..].try_into();
    u64::from_le_bytes(bytes.expect("eight bytes")) as usize
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Returned = Result<Vec<(Text, Tensor)>, Status>;

pub(super) const ECHO: &str = "echo";
pub(super) const FAIL: &str = "fail";
pub(super) const LATE: &str = "late";

const CALL_FEED: &str = "call";
