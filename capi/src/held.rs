//! An engine that a program in another language holds, from its start to its end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grpcxx_rpc::{Code, Reason, Status};
use grpcxx_runtime::{Client, Engine};

use crate::log;
use crate::start::Page;

/// An engine and what it tells, which several threads use until one of them stops it. In a forked
/// child, where another thread of the parent may have held any lock, nothing is done with it.
pub struct HeldEngine {
    client: Client,
    engine: Mutex<Option<Arc<Engine>>>,
    page: Mutex<Option<Page>>,
}

impl HeldEngine {
    /// Holds an engine that has started, and its page.
    pub fn new(engine: Engine, page: Page) -> Self {
        Self {
            client: engine.client(),
            engine: Mutex::new(Some(Arc::new(engine))),
            page: Mutex::new(Some(page)),
        }
    }

    /// Runs code with the engine unless it has stopped. No lock is held meanwhile: code of the
    /// program may run in it, as the destructor of what is replaced, which may use the engine, stop
    /// it, and wait for other threads that do.
    ///
    /// # Errors
    /// `UNAVAILABLE` if the engine was told to stop, `FAILED_PRECONDITION` in a child of the
    /// process that started it; those of the code.
    pub fn with<T>(&self, code: impl FnOnce(&Engine) -> Result<T, Status>) -> Result<T, Status> {
        self.check_own()?;
        let engine = lock(&self.engine).clone();
        let engine = engine.ok_or_else(|| {
            Status::new(Code::Unavailable, "the engine has stopped").because(Reason::Stopping)
        })?;
        code(&engine)
    }

    /// Stops the engine, and ends the page behind it; what is in flight has `grace` to finish. Then
    /// it gives the log time to be written. A second call does nothing.
    ///
    /// # Errors
    /// `INTERNAL` if a shard had ended before because its thread failed; `FAILED_PRECONDITION` in a
    /// child of the process that started it.
    pub fn stop(&self, grace: Duration) -> Result<(), Status> {
        self.check_own()?;
        let Some(engine) = lock(&self.engine).take() else {
            return Ok(());
        };
        let stopped = engine.stop(grace);
        // Until now it has told that the engine stops.
        let page = lock(&self.page).take();
        drop(page);
        log::flush();
        stopped.map_err(|error| Status::new(Code::Internal, error.to_string()))
    }

    fn check_own(&self) -> Result<(), Status> {
        self.client.inherited().map_or(Ok(()), Err)
    }
}

impl Drop for HeldEngine {
    fn drop(&mut self) {
        let engine = taken(&mut self.engine);
        if self.client.inherited().is_some() {
            // It has none of its threads here, for whose end it would wait.
            std::mem::forget((engine, taken(&mut self.page)));
            return;
        }
        // A thread of a shard, which cannot wait for its own end, may hold it a moment longer.
        if let Some(engine) = engine
            && let Err(error) = engine.stop(Duration::ZERO)
        {
            tracing::error!(%error, "a shard had failed");
        }
    }
}

/// Takes what only the caller has by now, without its lock.
fn taken<T>(mutex: &mut Mutex<Option<T>>) -> Option<T> {
    let inner = mutex.get_mut();
    inner.unwrap_or_else(PoisonError::into_inner).take()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
