//! Methods of services as shards serve them: decoding, running, encoding, counting.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::future::{AbortHandle, Abortable};
use grpcxx_rpc::{Code, Envelope, Status, Text};
use prost::Message;

use super::codec;
use super::exchange::{Request, Response};
use super::stats::MethodStats;
use crate::function::{RequestWatch, panicked};
use crate::host::TaskSpawner;

/// A service that `grpcxx-build` made out of a .proto file and a program has implemented.
pub trait TypedService {
    /// The name, with its package.
    const NAME: &'static str;

    /// The methods, and what describes them.
    fn into_methods(self) -> Methods;
}

/// Where the code of a service runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// On the shard that took the call in, which costs no hop to another thread. The code must not
    /// block; one that holds the shard for longer than a millisecond is named in the log.
    #[default]
    Shard,
    /// On a thread of the compute pool, where it may take its time.
    ComputePool,
}

/// The methods of a service, by name.
pub struct Methods {
    pub(crate) service: &'static str,
    pub(crate) descriptors: &'static [u8],
    pub(crate) place: Place,
    pub(crate) methods: Vec<(&'static str, Arc<dyn Unary>)>,
}

impl Methods {
    /// No methods yet of the service with this name. `descriptors` is a serialized
    /// `FileDescriptorSet` that describes it.
    pub fn new(service: &'static str, descriptors: &'static [u8], place: Place) -> Self {
        Self {
            service,
            descriptors,
            place,
            methods: Vec::new(),
        }
    }

    /// Adds a method that takes one message and answers with one.
    #[must_use]
    pub fn unary<M, R, F, T>(mut self, name: &'static str, method: F) -> Self
    where
        M: Message + Default + 'static,
        R: Message + 'static,
        F: Fn(Request<M>) -> T + Send + Sync + 'static,
        T: Future<Output = Result<Response<R>, Status>> + 'static,
    {
        let method = Typed {
            method,
            message: PhantomData::<fn(M)>,
        };
        self.methods.push((name, Arc::new(method)));
        self
    }
}

/// A method whose messages are decoded and encoded.
pub(crate) trait Unary: Send + Sync {
    /// Calls the method. The future is to be polled on the thread that has called.
    fn call(&self, envelope: &Envelope) -> Result<LocalAnswer, Status>;
}

/// The answer of a method, on the thread where the method was called.
pub(crate) type LocalAnswer = Pin<Box<dyn Future<Output = Result<Envelope, Status>>>>;

struct Typed<F, M> {
    method: F,
    message: PhantomData<fn(M)>,
}

impl<M, R, F, T> Unary for Typed<F, M>
where
    M: Message + Default + 'static,
    R: Message + 'static,
    F: Fn(Request<M>) -> T + Send + Sync + 'static,
    T: Future<Output = Result<Response<R>, Status>> + 'static,
{
    fn call(&self, envelope: &Envelope) -> Result<LocalAnswer, Status> {
        let message = codec::decode(envelope.message())
            .map_err(|error| Status::new(Code::InvalidArgument, format!("the message: {error}")))?;
        let request = Request::with_metadata(message, envelope.request_metadata());
        let answer = (self.method)(request);
        Ok(Box::pin(async move {
            let response = answer.await?;
            codec::answer(response.metadata(), response.get_ref())
        }))
    }
}

/// A method that an engine serves.
pub(crate) struct Registered {
    pub(crate) path: Text,
    pub(crate) stats: MethodStats,
    method: Arc<dyn Unary>,
    place: Place,
    spawners: Arc<[TaskSpawner]>,
}

/// What became of a call that a method was given.
pub(crate) enum Begun {
    /// It has ended.
    Ended(Result<Envelope, Status>),
    /// Its future waits for something, on this thread.
    Waits(LocalAnswer),
    /// It is to be run on a thread of the compute pool.
    ForPool(Box<dyn FnOnce() -> Result<Envelope, Status> + Send>),
}

impl Registered {
    pub(crate) fn new(
        path: Text,
        method: Arc<dyn Unary>,
        place: Place,
        spawners: Arc<[TaskSpawner]>,
    ) -> Self {
        Self {
            stats: MethodStats::new(spawners.len()),
            path,
            method,
            place,
            spawners,
        }
    }

    pub(crate) fn may_block(&self) -> bool {
        self.place == Place::ComputePool
    }

    /// Calls the method on this shard, as far as it comes without waiting.
    pub(crate) fn begin(self: &Arc<Self>, envelope: Envelope, shard: usize) -> Begun {
        let begun = self.stats.begin(shard, envelope.message_bytes());
        if self.may_block() {
            let method = Arc::clone(self);
            return Begun::ForPool(Box::new(move || {
                let answer = caught(|| futures_executor::block_on(method.method.call(&envelope)?));
                method.stats.end(shard, begun, &answer);
                answer
            }));
        }
        let mut polled = Instant::now();
        let mut answer = match caught(|| self.method.call(&envelope)) {
            Ok(answer) => answer,
            Err(status) => {
                let answer = Err(status);
                self.stats.end(shard, begun, &answer);
                return Begun::Ended(answer);
            }
        };
        // A future that has to wait is polled again by an executor, with a waker that counts.
        let mut context = Context::from_waker(Waker::noop());
        match self.poll(&mut answer, &mut context, &mut polled) {
            Poll::Ready(answer) => {
                self.stats.end(shard, begun, &answer);
                Begun::Ended(answer)
            }
            Poll::Pending => {
                let method = Arc::clone(self);
                let mut ending = Ending {
                    method,
                    shard,
                    begun: Some(begun),
                };
                Begun::Waits(Box::pin(std::future::poll_fn(move |context| {
                    let mut polled = Instant::now();
                    let polled = ending.method.poll(&mut answer, context, &mut polled);
                    if let Poll::Ready(answer) = &polled {
                        ending.end(answer);
                    }
                    polled
                })))
            }
        }
    }

    /// Polls the answer of the method, and warns if that has held the shard.
    fn poll(
        &self,
        answer: &mut LocalAnswer,
        context: &mut Context<'_>,
        since: &mut Instant,
    ) -> Poll<Result<Envelope, Status>> {
        let polled = catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(context)));
        let held = since.elapsed();
        if held > SHARD_HELD_MAX {
            tracing::warn!(
                method = self.path.as_str(),
                held_ms = held.as_millis() as u64,
                "a method held its shard; run its service on the compute pool"
            );
        }
        polled.unwrap_or_else(|panic| Poll::Ready(Err(panicked(&*panic))))
    }

    /// Runs what a method has begun to its end, on this shard's thread, and hands over its answer.
    /// What comes back withdraws the call.
    pub(crate) fn run(
        &self,
        shard: usize,
        answer: LocalAnswer,
        done: impl FnOnce(Result<Envelope, Status>) + 'static,
    ) -> Arc<Withdrawal> {
        let (handle, registration) = AbortHandle::new_pair();
        let task = Abortable::new(async move { done(answer.await) }, registration);
        spawn_local(self.spawners.get(shard), async move {
            // One that was withdrawn is dropped, with whoever waits for its answer.
            let _was_withdrawn = task.await;
        });
        Arc::new(Withdrawal(handle))
    }
}

/// Drops the future of a call that nobody waits for any more.
pub(crate) struct Withdrawal(AbortHandle);

impl RequestWatch for Withdrawal {
    fn withdrawn(&self) {
        self.0.abort();
    }
}

/// Counts the end of a call, also if it is dropped.
struct Ending {
    method: Arc<Registered>,
    shard: usize,
    begun: Option<Instant>,
}

impl Ending {
    fn end(&mut self, answer: &Result<Envelope, Status>) {
        if let Some(begun) = self.begun.take() {
            self.method.stats.end(self.shard, begun, answer);
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.end(&Err(Status::new(Code::Cancelled, "the call was withdrawn")));
    }
}

/// Runs a future of this thread beside its shard. If the shard takes no more, the future is
/// dropped.
fn spawn_local(spawner: Option<&TaskSpawner>, future: impl Future<Output = ()> + 'static) {
    let Some(spawner) = spawner else {
        return;
    };
    // Only what may go to other threads passes the spawner, so the future waits here for its turn.
    WAITING.with_borrow_mut(|waiting| waiting.push_back(Box::pin(future)));
    let job = || async {
        if let Some(future) = WAITING.with_borrow_mut(VecDeque::pop_front) {
            future.await;
        }
    };
    if spawner.spawn_local(job).is_err() {
        let refused = WAITING.with_borrow_mut(VecDeque::pop_back);
        // Not while the queue is borrowed: what it holds may be anything.
        drop(refused);
    }
}

thread_local! {
    static WAITING: RefCell<VecDeque<Pin<Box<dyn Future<Output = ()>>>>> =
        const { RefCell::new(VecDeque::new()) };
}

fn caught<T>(code: impl FnOnce() -> Result<T, Status>) -> Result<T, Status> {
    catch_unwind(AssertUnwindSafe(code)).unwrap_or_else(|panic| Err(panicked(&*panic)))
}

/// How long a method may hold its shard before the log names it.
const SHARD_HELD_MAX: Duration = Duration::from_millis(1);
