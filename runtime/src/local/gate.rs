use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use grpcxx_rpc::{Code, Reason, Status};

/// Counts work that is under way on one shard, so that a stop can wait for it: whoever begins some
/// enters, and [`Gate::close`] lets nobody else in and waits until all have left.
///
/// ```
/// use std::time::Duration;
///
/// use grpcxx_runtime::local::{self, Gate};
/// use grpcxx_runtime::Engine;
///
/// let engine = Engine::builder().start()?;
/// let left = engine.shards().submit_to(0, || async {
///     let gate = Gate::new();
///     let guard = gate.enter()?;
///     let work = local::spawn_local(async move {
///         local::sleep(Duration::from_millis(1)).await;
///         drop(guard);
///     });
///     gate.close().await;
///     assert!(gate.enter().is_err());
///     work.await
/// });
/// left.wait()??;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct Gate {
    state: Rc<State>,
}

/// Work that is under way behind a [`Gate`], until it is dropped.
#[must_use = "dropping it says that the work is over"]
pub struct GateGuard {
    state: Rc<State>,
}

#[derive(Default)]
struct State {
    inside: Cell<usize>,
    is_closed: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

impl Gate {
    /// An open gate without anybody inside.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins work.
    ///
    /// # Errors
    /// `UNAVAILABLE`: the gate is closed.
    pub fn enter(&self) -> Result<GateGuard, Status> {
        if self.state.is_closed.get() {
            return Err(
                Status::new(Code::Unavailable, "the gate is closed").because(Reason::Stopping)
            );
        }
        self.state.inside.set(self.state.inside.get() + 1);
        Ok(GateGuard {
            state: Rc::clone(&self.state),
        })
    }

    /// Lets nobody else in, and waits until all who are inside have left. The gate is closed with
    /// the first poll, and stays closed.
    pub async fn close(&self) {
        self.state.is_closed.set(true);
        poll_fn(|context| {
            if self.state.inside.get() == 0 {
                return Poll::Ready(());
            }
            let mut waiting = self.state.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// Whether the gate lets nobody in any more.
    pub fn is_closed(&self) -> bool {
        self.state.is_closed.get()
    }

    /// How many are inside.
    pub fn inside(&self) -> usize {
        self.state.inside.get()
    }
}

impl Drop for GateGuard {
    fn drop(&mut self) {
        let inside = self.state.inside.get() - 1;
        self.state.inside.set(inside);
        if inside == 0 {
            let waiting = self.state.waiting.take();
            waiting.into_iter().for_each(Waker::wake);
        }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("inside", &self.inside())
            .field("is_closed", &self.is_closed())
            .finish()
    }
}

impl fmt::Debug for GateGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateGuard").finish_non_exhaustive()
    }
}
