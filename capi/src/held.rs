//! An engine that a program in another language holds, from its start to its end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grpcxx_rpc::{Code, Reason, Status};
use grpcxx_runtime::Engine;

use crate::log;
use crate::start::Page;

/// An engine and what it tells, which several threads use until one of them stops it.
pub struct HeldEngine {
    engine: Mutex<Option<Arc<Engine>>>,
    page: Mutex<Option<Page>>,
}

impl HeldEngine {
    /// Holds an engine that has started, and its page.
    pub fn new(engine: Engine, page: Page) -> Self {
        Self {
            engine: Mutex::new(Some(Arc::new(engine))),
            page: Mutex::new(Some(page)),
        }
    }

    /// Runs code with the engine unless it has stopped. No lock is held meanwhile: code of the
    /// program may run in it, as the destructor of what is replaced, which may use the engine, stop
    /// it, and wait for other threads that do.
    ///
    /// # Errors
    /// `UNAVAILABLE` if the engine was told to stop; those of the code.
    pub fn with<T>(&self, code: impl FnOnce(&Engine) -> Result<T, Status>) -> Result<T, Status> {
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
    /// `INTERNAL` if a shard had ended before because its thread failed.
    pub fn stop(&self, grace: Duration) -> Result<(), Status> {
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

    /// Lets go of the engine in a child of the process that started it, which has none of its
    /// threads.
    pub fn forget(&self) {
        if let Ok(mut engine) = self.engine.try_lock() {
            std::mem::forget(engine.take());
        }
        if let Ok(mut page) = self.page.try_lock() {
            std::mem::forget(page.take());
        }
    }
}

impl Drop for HeldEngine {
    fn drop(&mut self) {
        // A thread of a shard, which cannot wait for its own end, may hold it a moment longer.
        if let Some(engine) = lock(&self.engine).take()
            && let Err(error) = engine.stop(Duration::ZERO)
        {
            tracing::error!(%error, "a shard had failed");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
