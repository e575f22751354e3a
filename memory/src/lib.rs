//! Tensor memory: one arena per shard, buffers with one owner, buffers that are shared.
//!
//! A [`BufferMut`] has exactly one owner and may be written. [`BufferMut::freeze`] turns it into a
//! [`Buffer`], which is read-only, cheap to clone and to slice, and returns its memory to wherever it
//! came from when the last clone is dropped, on whatever thread that happens.

mod arena;
mod buffer;

pub use arena::{Arena, ArenaOptions, OutOfMemory};
pub use buffer::{Buffer, BufferMut};
