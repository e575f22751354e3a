//! One value a shard: made on the thread of its shard, used there without locks, ended with it.

mod shards;
mod thread;

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use grpcxx_rpc::{Code, Status};

pub use self::shards::Shards;
pub(crate) use self::thread::ShardThread;
use crate::host::Beside;
use crate::local::JoinHandle;

/// One value of `T` on each shard of an engine.
///
/// Each is made, used and dropped on the thread of its shard, so `T` needs neither `Send` nor
/// `Sync`, and no lock: what changes is in a `Cell` or a `RefCell`. The handle goes to any thread
/// and is cheap to clone. The values end with the last handle, or with the engine, after its
/// futures.
///
/// ```
/// use std::cell::Cell;
///
/// use grpcxx_runtime::Engine;
///
/// let engine = Engine::builder().shards(2).start()?;
/// let hits = engine.sharded(|_shard| Cell::new(0_u64))?;
/// hits.invoke_on(0, |hits| hits.set(hits.get() + 1)).wait()?;
/// hits.invoke_on(1, |hits| hits.set(hits.get() + 2)).wait()?;
/// let sum = futures_executor::block_on(hits.map_reduce(Cell::get, 0, |sum, hits| sum + hits))?;
/// assert_eq!(sum, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Sharded<T> {
    values: Arc<Values>,
    of: PhantomData<fn() -> T>,
}

/// The values of all shards, by their number there.
struct Values {
    id: u64,
    shards: Shards,
}

impl<T: 'static> Sharded<T> {
    /// Makes a value on each shard, where `make` gets the number of the shard. From threads that
    /// are no executor, [`Engine::sharded`](crate::Engine::sharded) is the same.
    ///
    /// # Errors
    /// The engine has ended, or a shard's inbox is full.
    pub async fn start<F>(shards: &Shards, make: F) -> Result<Self, Status>
    where
        F: Fn(usize) -> T + Send + Sync + 'static,
    {
        let sharded = Self::without_values(shards);
        let made = sharded.making(make).enumerate();
        let made: Vec<_> = made
            .map(|(shard, make)| shards.invoke_on(shard, make))
            .collect();
        for made in made {
            made.await?;
        }
        Ok(sharded)
    }

    /// As [`Sharded::start`], but does not wait until the values are there, so that what prepares
    /// an engine can have it ([`start_with`](crate::EngineBuilder::start_with)). Calls of peers and
    /// code that reach a shard later find its value, unless the engine has ended.
    pub fn begin<F>(shards: &Shards, make: F) -> Self
    where
        F: Fn(usize) -> T + Send + Sync + 'static,
    {
        let sharded = Self::without_values(shards);
        for (shard, make) in sharded.making(make).enumerate() {
            shards.run_surely(shard, make);
        }
        sharded
    }

    fn without_values(shards: &Shards) -> Self {
        Self {
            values: Arc::new(Values {
                id: IDS.fetch_add(1, Ordering::Relaxed),
                shards: shards.clone(),
            }),
            of: PhantomData,
        }
    }

    /// What each shard does to have its value, in their order.
    fn making<F>(
        &self,
        make: F,
    ) -> impl Iterator<Item = impl FnOnce() + Send + use<F, T>> + use<F, T>
    where
        F: Fn(usize) -> T + Send + Sync + 'static,
    {
        let (id, make) = (self.values.id, Arc::new(make));
        (0..self.shards().len()).map(move |shard| {
            let make = Arc::clone(&make);
            move || {
                let value = Rc::new(make(shard));
                if let Some(beside) = Beside::here() {
                    beside.put(id, value);
                }
            }
        })
    }

    /// The shards that have the values.
    pub fn shards(&self) -> &Shards {
        &self.values.shards
    }

    /// The value of the shard whose thread this is, if it is one of this engine and the value was
    /// not stopped. Handlers and futures of a shard find their own with it.
    pub fn local(&self) -> Option<Rc<T>> {
        Beside::here()?.value(self.values.id)
    }

    /// Runs `code` with the value of a shard, on its thread and between two turns of its work: code
    /// that neither waits nor takes long. It costs less than [`Sharded::submit_to`].
    ///
    /// A panic in it ends the engine.
    pub fn invoke_on<F, R>(&self, shard: usize, code: F) -> JoinHandle<R>
    where
        F: FnOnce(&T) -> R + Send + 'static,
        R: Send + 'static,
    {
        let id = self.values.id;
        let with_value = move || match value(id) {
            Ok(value) => Ok(code(&value)),
            Err(status) => Err(status),
        };
        self.shards().run_on(shard, with_value)
    }

    /// Runs the future that `code` makes of the value of a shard, on that shard.
    ///
    /// A panic in it ends the engine.
    ///
    /// ```
    /// use std::cell::Cell;
    /// use std::time::Duration;
    ///
    /// use grpcxx_runtime::{Engine, local};
    ///
    /// let engine = Engine::builder().start()?;
    /// let hits = engine.sharded(|_shard| Cell::new(0_u64))?;
    /// let later = hits.submit_to(0, |hits| async move {
    ///     local::sleep(Duration::from_millis(1)).await;
    ///     hits.replace(7)
    /// });
    /// assert_eq!(later.wait()?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn submit_to<F, U>(&self, shard: usize, code: F) -> JoinHandle<U::Output>
    where
        F: FnOnce(Rc<T>) -> U + Send + 'static,
        U: Future + 'static,
        U::Output: Send,
    {
        let id = self.values.id;
        let with_value = move || async move {
            match value(id) {
                Ok(value) => Ok(code(value).await),
                Err(status) => Err(status),
            }
        };
        self.shards().spawn_on(shard, with_value)
    }

    /// Runs `map` on all shards at once, and reduces what it returns in the order of the shards.
    ///
    /// # Errors
    /// The status of the first shard on which it did not run.
    pub async fn map_reduce<M, R, A>(
        &self,
        map: M,
        initial: A,
        mut reduce: impl FnMut(A, R) -> A,
    ) -> Result<A, Status>
    where
        M: Fn(&T) -> R + Send + Sync + 'static,
        R: Send + 'static,
    {
        let map = Arc::new(map);
        let mapped: Vec<_> = (0..self.shards().len())
            .map(|shard| {
                let map = Arc::clone(&map);
                self.invoke_on(shard, move |value| map(value))
            })
            .collect();
        let mut reduced = initial;
        for mapped in mapped {
            reduced = reduce(reduced, mapped.await?);
        }
        Ok(reduced)
    }

    /// Lets each shard do what `stop` says with its value, all at once, then drops the values:
    /// whoever asks for them from now on gets `FAILED_PRECONDITION`. A value with a
    /// [`Gate`](crate::local::Gate) closes it there. Work that has the value already keeps it.
    ///
    /// # Errors
    /// The status of the first shard on which it did not run; the values are dropped all the same.
    pub async fn stop<F, U>(&self, stop: F) -> Result<(), Status>
    where
        F: Fn(Rc<T>) -> U + Send + Sync + 'static,
        U: Future<Output = ()> + 'static,
    {
        let stop = Arc::new(stop);
        let stopped: Vec<_> = (0..self.shards().len())
            .map(|shard| {
                let stop = Arc::clone(&stop);
                self.submit_to(shard, move |value| stop(value))
            })
            .collect();
        let mut result = Ok(());
        for stopped in stopped {
            let stopped = stopped.await;
            result = result.and(stopped);
        }
        self.values.end();
        result
    }
}

impl Values {
    /// Has the shards let go of the values.
    fn end(&self) {
        let id = self.id;
        for shard in 0..self.shards.len() {
            self.shards.run_surely(shard, move || {
                let value = Beside::here().and_then(|beside| beside.take(id));
                drop(value);
            });
        }
    }
}

impl Drop for Values {
    fn drop(&mut self) {
        self.end();
    }
}

impl<T> Clone for Sharded<T> {
    fn clone(&self) -> Self {
        Self {
            values: Arc::clone(&self.values),
            of: PhantomData,
        }
    }
}

impl<T> fmt::Debug for Sharded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharded")
            .field("shards", &self.values.shards.len())
            .finish_non_exhaustive()
    }
}

/// The value with this number of the shard whose thread this is.
fn value<T: 'static>(id: u64) -> Result<Rc<T>, Status> {
    let value = Beside::here().and_then(|beside| beside.value(id));
    value.ok_or_else(|| Status::new(Code::FailedPrecondition, "the value was stopped"))
}

/// Numbers of values, unique within the process.
static IDS: AtomicU64 = AtomicU64::new(1);
