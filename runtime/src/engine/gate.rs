//! What an engine waits for before it serves those who come.

use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What keeps the shard that listens from its first turn. Those who come wait in the line of the
/// system.
pub(super) struct Gate(Mutex<Option<Sender<()>>>);

impl Gate {
    /// A gate whose other end the shard waits at until this is dropped.
    pub(super) fn closed(end: Sender<()>) -> Self {
        Self(Mutex::new(Some(end)))
    }

    /// Whether the shard may turn: before that nobody can wait for what it does.
    pub(super) fn is_open(&self) -> bool {
        self.end().is_none()
    }

    /// Lets the shard turn. A second call does nothing.
    pub(super) fn open(&self) {
        drop(self.end().take());
    }

    fn end(&self) -> MutexGuard<'_, Option<Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
