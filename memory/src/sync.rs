//! The atomics of this crate, which loom's replace under `cfg(loom)`.
#![cfg_attr(
    loom,
    expect(unsafe_code, reason = "a tracked cell shared between threads")
)]

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicI32, AtomicU32, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicI32, AtomicU32, Ordering, fence};

/// Stands for the bytes of a block: loom reports a read or write of it that no ordering separates
/// from another thread's write. Nothing at all outside of loom.
#[derive(Debug, Default)]
pub(crate) struct Probe {
    #[cfg(loom)]
    cell: loom::cell::UnsafeCell<()>,
}

impl Probe {
    #[inline]
    pub(crate) fn read(&self) {
        #[cfg(loom)]
        self.cell.with(|_| ());
    }

    #[inline]
    pub(crate) fn write(&self) {
        #[cfg(loom)]
        self.cell.with_mut(|_| ());
    }
}

// SAFETY: the cell holds no data; reporting accesses that race is what it is for.
#[cfg(loom)]
unsafe impl Sync for Probe {}
