//! Locks whose holder never panics half-way through a change.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the mutex guards.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
