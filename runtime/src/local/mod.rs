//! What code that runs on a shard uses there: futures beside the shard, timers, a gate for graceful
//! stops, and a way off the shard for code that blocks.
//!
//! Futures on a shard share its thread and its CPU. They may hold `Rc` and `RefCell`, they must not
//! block, and one that runs for long between two awaits holds up every call of the shard. A panic
//! in one of them ends the engine as a whole, as any panic on the thread of a shard does. Futures
//! that are left when the shard ends are dropped there, before the values of
//! [`Sharded`](crate::Sharded).
//!
//! All of this is the same on the glommio and on the native host.

mod gate;
mod join;
mod time;

use std::future::Future;
use std::rc::Rc;

use futures_channel::oneshot;
use futures_util::future::AbortHandle;

pub use self::gate::{Gate, GateGuard};
pub use self::join::JoinHandle;
pub(crate) use self::join::{report, would_block};
pub use self::time::{Interval, Sleep, interval, sleep, timeout};
use crate::host::Beside;
use crate::sharded::Shards;

/// Runs a future beside the shard whose thread this is. Dropping the handle lets it go on.
///
/// # Panics
/// If the calling thread is not that of a shard.
///
/// ```
/// use grpcxx_runtime::{Engine, local};
///
/// let engine = Engine::builder().start()?;
/// let sum = engine.shards().submit_to(0, || async {
///     let half = local::spawn_local(async { 20 });
///     half.await.map(|half| half + 22)
/// });
/// assert_eq!(sum.wait()??, 42);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn spawn_local<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
{
    let beside = here();
    let (sender, receiver) = oneshot::channel();
    let (abort, registration) = AbortHandle::new_pair();
    let task = report(async { Ok(future.await) }, registration, sender);
    beside.spawn(Box::pin(task));
    JoinHandle::new(receiver, Some(abort), Shards::here())
}

/// Runs code that may block on a thread of the engine's compute pool, which also runs its
/// functions. A panic there ends nothing but the code itself.
///
/// # Panics
/// If the calling thread is not that of an engine's shard; see [`Shards::spawn_blocking`] for
/// others.
///
/// ```
/// use grpcxx_runtime::{Engine, local};
///
/// let engine = Engine::builder().start()?;
/// let bytes = engine.shards().submit_to(0, || async {
///     local::spawn_blocking(|| std::fs::read("/proc/version")).await
/// });
/// assert!(!bytes.wait()???.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn spawn_blocking<F, R>(code: F) -> JoinHandle<R>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    let Some(shards) = Shards::here() else {
        panic!("{OFF_SHARD}");
    };
    shards.spawn_blocking(code)
}

/// What belongs to the thread of the shard that this is.
fn here() -> Rc<Beside> {
    let Some(beside) = Beside::here() else {
        panic!("{OFF_SHARD}");
    };
    beside
}

const OFF_SHARD: &str = "this thread is not that of a shard; \
                         Shards::submit_to runs a future on one from any thread";
