use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks what is whole after any panic between two of its operations.
pub(crate) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
