use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use grpcxx_rpc::{Code, Reason, Status};
use grpcxx_transport::Time;

use super::here;
use crate::host::Beside;

/// A future that is ready when its time is over, not before. It stays on its shard.
#[must_use = "nothing sleeps until this is awaited"]
pub struct Sleep {
    beside: Rc<Beside>,
    at: Time,
    timer: Option<u64>,
}

/// Comes round once in each period; see [`interval`].
pub struct Interval {
    sleep: Sleep,
    period: Duration,
}

/// Waits for `duration` without holding up the shard.
///
/// # Panics
/// If the calling thread is not that of a shard.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// use grpcxx_runtime::{Engine, local};
///
/// let engine = Engine::builder().start()?;
/// let begin = Instant::now();
/// let slept = engine.shards().submit_to(0, || local::sleep(Duration::from_millis(5)));
/// slept.wait()?;
/// assert!(begin.elapsed() >= Duration::from_millis(5));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn sleep(duration: Duration) -> Sleep {
    let beside = here();
    let at = beside.now() + duration;
    Sleep {
        beside,
        at,
        timer: None,
    }
}

/// Comes round once in each `period`, the first time at once. A tick that comes late leaves out
/// those it has missed: there are no bursts.
///
/// # Panics
/// If `period` is zero, or the calling thread is not that of a shard.
///
/// ```
/// use std::time::Duration;
///
/// use grpcxx_runtime::{Engine, local};
///
/// let engine = Engine::builder().start()?;
/// let done = engine.shards().submit_to(0, || async {
///     let mut interval = local::interval(Duration::from_millis(1));
///     for _ in 0..3 {
///         interval.tick().await;
///     }
/// });
/// done.wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn interval(period: Duration) -> Interval {
    assert!(!period.is_zero(), "an interval needs a period");
    Interval {
        sleep: sleep(Duration::ZERO),
        period,
    }
}

/// Lets `future` run for at most `duration`, then drops it.
///
/// # Errors
/// `DEADLINE_EXCEEDED`: the time was over first.
///
/// # Panics
/// If the calling thread is not that of a shard.
///
/// ```
/// use std::time::Duration;
///
/// use grpcxx_runtime::{Engine, local};
///
/// let engine = Engine::builder().start()?;
/// let ended = engine.shards().submit_to(0, || {
///     local::timeout(Duration::from_millis(1), std::future::pending::<()>())
/// });
/// assert!(ended.wait()?.is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Status> {
    let mut future = pin!(future);
    let mut sleep = pin!(sleep(duration));
    std::future::poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        sleep.as_mut().poll(context).map(|()| Err(over(duration)))
    })
    .await
}

impl Interval {
    /// Waits for the next tick.
    pub async fn tick(&mut self) {
        (&mut self.sleep).await;
        let now = self.sleep.beside.now();
        let late_ns = now.since(self.sleep.at).as_nanos();
        let period_ns = self.period.as_nanos();
        let rest_ns = period_ns - late_ns % period_ns;
        self.sleep.at = now + Duration::from_nanos(u64::try_from(rest_ns).unwrap_or(u64::MAX));
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let timers = self.beside.timers();
        if self.beside.now() >= self.at {
            if let Some(timer) = self.timer.take() {
                self.beside.timers().disarm(self.at, timer);
            }
            return Poll::Ready(());
        }
        match self.timer {
            Some(timer) => timers.renew(self.at, timer, context.waker()),
            None => {
                self.timer = Some(timers.arm(self.at, context.waker()));
                self.beside.ring();
            }
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            self.beside.timers().disarm(self.at, timer);
        }
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").field("at", &self.at).finish()
    }
}

impl fmt::Debug for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interval")
            .field("period", &self.period)
            .finish_non_exhaustive()
    }
}

fn over(duration: Duration) -> Status {
    let text = format!("the time of {duration:?} is over");
    Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline)
}
