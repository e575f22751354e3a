//! What an engine waits for before it serves those who come.

use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};

/// What keeps the shard that listens from its first turn. Those who come wait in the line of the
/// system.
pub(super) struct Gate(Mutex<Option<Sender<()>>>);

impl Gate {
    /// A gate whose other end the shard waits at until this is dropped.
    pub(super) fn closed(end: Sender<()>) -> Self {
        Self(Mutex::new(Some(end)))
    }

    /// Lets the shard turn. A second call does nothing.
    pub(super) fn open(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
