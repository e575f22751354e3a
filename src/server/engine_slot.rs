use std::sync::{Mutex, PoisonError};

use grpcxx_rpc::{Code, Reason, Status};
use grpcxx_runtime::Engine;

/// An engine that several threads use until one of them stops it.
#[derive(Debug)]
pub(super) struct EngineSlot {
    engine: Mutex<Option<Engine>>,
}

impl EngineSlot {
    pub(super) fn new(engine: Engine) -> Self {
        Self {
            engine: Mutex::new(Some(engine)),
        }
    }

    /// Uses the engine for a moment: `use_engine` must not wait for anything.
    pub(super) fn with<T>(&self, use_engine: impl FnOnce(&Engine) -> T) -> Result<T, Status> {
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        match &*engine {
            Some(engine) => Ok(use_engine(engine)),
            None => {
                Err(Status::new(Code::Unavailable, "this task is stopping")
                    .because(Reason::Stopping))
            }
        }
    }

    /// Takes the engine away from all others.
    pub(super) fn take(&self) -> Option<Engine> {
        self.engine
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}
