//! Models as files: safetensors and `.npy`, in and out, sharding over ps tasks, checksums.
//!
//! A model is a set of named tensors. [`Model`] opens the files that hold it, checks
//! their headers whole before any tensor is read, and reads one tensor at a time, so that a task
//! takes only its own share into memory. [`SafetensorsWriter`] lays a file out first and takes its
//! tensors in any order.

mod error;
mod file;
mod fingerprint;
mod format;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod index;
mod npy;
mod npy_header;
mod output;
mod shards;
mod writer;

pub use error::{FileAction, ModelError};
pub use file::{Entry, Model, Skipped};
pub use fingerprint::{Fingerprint, ModelFingerprint};
pub use npy::write_npy;
pub use shards::{Shards, shard};
pub use writer::SafetensorsWriter;
