//! The atomics of the mesh: the real ones, or loom's when a model is checked.

#[cfg(loom)]
pub(super) use loom::sync::{
    Arc,
    atomic::{AtomicBool, Ordering, fence},
};
#[cfg(not(loom))]
pub(super) use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering, fence},
};
