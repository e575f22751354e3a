use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use futures_channel::oneshot;
use futures_util::future::AbortHandle;
use grpcxx_rpc::{Account, Code, Reason, Status};
use grpcxx_transport::Refusal;

use crate::blame::panic_text;
use crate::client::Mailboxes;
use crate::command::Command;
use crate::compute::{Compute, Job};
use crate::host::{Beside, TaskSpawner};
use crate::local::{JoinHandle, report};

/// The shards of an engine, to run code on them from any thread; cheap to clone.
///
/// Code on a shard holds up the calls of that shard while it runs, and must not block. A panic in
/// it ends the engine as a whole.
#[derive(Clone)]
pub struct Shards {
    shared: Arc<Shared>,
}

struct Shared {
    spawners: Vec<TaskSpawner>,
    mailboxes: Arc<Mailboxes>,
    compute: Arc<dyn Compute>,
}

impl Shards {
    pub(crate) fn new(
        spawners: Vec<TaskSpawner>,
        mailboxes: Arc<Mailboxes>,
        compute: Arc<dyn Compute>,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                spawners,
                mailboxes,
                compute,
            }),
        }
    }

    /// How many there are, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "an engine has a shard")]
    pub fn len(&self) -> usize {
        self.shared.spawners.len()
    }

    /// The number of the shard whose thread this is, if it is one of these.
    pub fn current(&self) -> Option<usize> {
        HERE.with(|here| {
            let here = here.borrow();
            let (shards, index) = here.as_ref()?;
            Arc::ptr_eq(&shards.shared, &self.shared).then_some(*index)
        })
    }

    /// Runs the future that `make` returns on a shard. `make` itself runs there too.
    ///
    /// The handle fails with `INVALID_ARGUMENT` if there is no such shard, with
    /// `RESOURCE_EXHAUSTED` if 1,024 futures wait for the shard to take them, and as the engine did
    /// if that ends first.
    ///
    /// ```
    /// use grpcxx_runtime::Engine;
    ///
    /// let engine = Engine::builder().shards(2).start()?;
    /// let shards = engine.shards();
    /// let from_one = shards.clone();
    /// let answer = shards.submit_to(0, move || async move {
    ///     assert_eq!(from_one.current(), Some(0));
    ///     from_one.submit_to(1, || async { 42 }).await
    /// });
    /// assert_eq!(answer.wait()??, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn submit_to<F, U>(&self, shard: usize, make: F) -> JoinHandle<U::Output>
    where
        F: FnOnce() -> U + Send + 'static,
        U: Future + 'static,
        U::Output: Send,
    {
        self.spawn_on(shard, move || async move { Ok(make().await) })
    }

    /// Runs `code` on a shard's thread, between two turns of its work. It costs less than
    /// [`Shards::submit_to`], for code that never waits.
    ///
    /// The handle fails with `INVALID_ARGUMENT` if there is no such shard, with
    /// `RESOURCE_EXHAUSTED` if its inbox is full, and as the engine did if that ends first.
    ///
    /// ```
    /// use grpcxx_runtime::Engine;
    ///
    /// let engine = Engine::builder().start()?;
    /// let there = engine.shards().invoke_on(0, || std::thread::current().id());
    /// assert_ne!(there.wait()?, std::thread::current().id());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn invoke_on<F, R>(&self, shard: usize, code: F) -> JoinHandle<R>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        self.run_on(shard, move || Ok(code()))
    }

    /// Runs code that may block on a thread of the compute pool, which also runs the functions of
    /// the engine. A panic there ends nothing but the code: the handle gets `INTERNAL`.
    ///
    /// ```
    /// use grpcxx_runtime::Engine;
    ///
    /// let engine = Engine::builder().start()?;
    /// assert_eq!(engine.shards().spawn_blocking(|| 6 * 7).wait()?, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn spawn_blocking<F, R>(&self, code: F) -> JoinHandle<R>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let job = Job::new(move || {
            let result = catch_unwind(AssertUnwindSafe(code));
            let result = result.map_err(|panic| panicked(panic_text(panic.as_ref())));
            let _nobody_waits = sender.send(result);
        });
        self.shared.compute.spawn(Account::OWN, job);
        JoinHandle::new(receiver, None, Some(self.clone()))
    }

    /// Those of the shard whose thread this is.
    pub(crate) fn here() -> Option<Self> {
        HERE.with(|here| here.borrow().as_ref().map(|(shards, _)| shards.clone()))
    }

    /// Says that the calling thread is that of shard `index`.
    pub(crate) fn enter(&self, index: usize) {
        HERE.with(|here| here.replace(Some((self.clone(), index))));
    }

    /// Says that the calling thread is that of no shard.
    pub(crate) fn leave() {
        let here = HERE.with(RefCell::take);
        drop(here);
    }

    /// Says that it is that of shard `index` until the result is dropped.
    pub(crate) fn stay(&self, index: usize) -> Stay {
        self.enter(index);
        Stay
    }

    pub(crate) fn spawners(&self) -> &[TaskSpawner] {
        &self.shared.spawners
    }

    /// Why code ended without a result.
    pub(crate) fn status_of_loss(&self) -> Status {
        self.shared.mailboxes.fate().status()
    }

    pub(super) fn spawn_on<F, U, R>(&self, shard: usize, make: F) -> JoinHandle<R>
    where
        F: FnOnce() -> U + Send + 'static,
        U: Future<Output = Result<R, Status>> + 'static,
        R: Send + 'static,
    {
        let Some(spawner) = self.shared.spawners.get(shard) else {
            return JoinHandle::failed(self.no_such_shard(shard));
        };
        let (sender, receiver) = oneshot::channel();
        let (abort, registration) = AbortHandle::new_pair();
        let job = move || report(async move { make().await }, registration, sender);
        match spawner.spawn_local(job) {
            Ok(()) => JoinHandle::new(receiver, Some(abort), Some(self.clone())),
            Err(Refusal::Full) => JoinHandle::failed(too_many_futures(shard)),
            Err(_ended) => JoinHandle::failed(self.shared.mailboxes.fate().refusal()),
        }
    }

    pub(super) fn run_on<F, R>(&self, shard: usize, code: F) -> JoinHandle<R>
    where
        F: FnOnce() -> Result<R, Status> + Send + 'static,
        R: Send + 'static,
    {
        if shard >= self.len() {
            return JoinHandle::failed(self.no_such_shard(shard));
        }
        let (sender, receiver) = oneshot::channel();
        let run = Command::Run(Box::new(move |_| {
            match catch_unwind(AssertUnwindSafe(code)) {
                // Whoever has let go of the handle does not want the result.
                Ok(result) => drop(sender.send(result)),
                Err(panic) => {
                    if let Some(beside) = Beside::here() {
                        beside.hold(Box::new(sender));
                    }
                    resume_unwind(panic);
                }
            }
        }));
        match self.shared.mailboxes.try_deliver(shard, run) {
            Ok(()) => JoinHandle::new(receiver, None, Some(self.clone())),
            Err(_) => JoinHandle::failed(self.shared.mailboxes.refusal(shard)),
        }
    }

    /// Runs code on a shard also if its inbox is full now.
    pub(super) fn run_surely(&self, shard: usize, code: impl FnOnce() + Send + 'static) {
        let run = Command::Run(Box::new(move |_| code()));
        self.shared.mailboxes.deliver(shard, run);
    }

    fn no_such_shard(&self, shard: usize) -> Status {
        Status::new(
            Code::InvalidArgument,
            format!("there is no shard {shard}; this engine has {}", self.len()),
        )
    }
}

/// For as long as a thread is that of a shard.
pub(crate) struct Stay;

impl Drop for Stay {
    fn drop(&mut self) {
        Shards::leave();
    }
}

impl fmt::Debug for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shards").field(&self.len()).finish()
    }
}

fn too_many_futures(shard: usize) -> Status {
    let text = format!("too many futures wait for shard {shard} to take them; try again later");
    Status::new(Code::ResourceExhausted, text).because(Reason::QueueFull)
}

fn panicked(text: &str) -> Status {
    Status::new(Code::Internal, format!("the code panicked: {text}")).because(Reason::Panicked)
}

thread_local! {
    /// Whose thread this is.
    static HERE: RefCell<Option<(Shards, usize)>> = const { RefCell::new(None) };
}
