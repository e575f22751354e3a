//! What threads that share a shard meet by: the real things, or loom's when a model is checked.

#[cfg(loom)]
pub(super) use loom::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering, fence},
    },
    thread::{Thread, current, park},
};
#[cfg(not(loom))]
pub(super) use std::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering, fence},
    },
    thread::{Thread, current, park, park_timeout},
};

/// A model has no time.
#[cfg(loom)]
pub(super) fn park_timeout(_: std::time::Duration) {
    park();
}
