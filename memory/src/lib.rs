//! Tensor memory: one arena per shard, buffers with one owner, buffers that are shared.
//!
//! A [`BufferMut`] has exactly one owner and may be written. [`BufferMut::freeze`] turns it into a
//! [`Buffer`], which is read-only, cheap to clone and to slice, and returns its memory to wherever
//! it came from when the last clone is dropped, on whatever thread that happens.
//!
//! # Where memory comes from
//! | source | made by | frozen, cloned, sliced, dropped |
//! |---|---|---|
//! | arena of a shard | [`Arena::allocate`] | without the heap, without a lock |
//! | heap | [`BufferMut::zeroed`], `From<Vec<u8>>` | the first freeze allocates a reference count |
//! | somebody else, unique | [`BufferMut::from_foreign`] | the first freeze allocates a reference count |
//! | somebody else, shared | [`Buffer::from_owner`], [`Buffer::from_foreign`], `From<Bytes>` | one reference count, allocated at the start |
//! | somebody else, part by part | [`Leases::borrow`] | without the heap |
//! | the program | `From<&'static [u8]>` | free of charge |
//!
//! Memory of other devices, which no CPU can read, is a [`DeviceBuffer`]; [`DeviceBuffer::stage`]
//! gives a [`Buffer`] of its bytes.
//!
//! Counts of references are shared by all threads. A thread that drops many references to the same
//! arena's or lender's memory in a row can take them off together, in a scope of [`DropBatch`].
//!
//! # How an arena works
//! Address space is reserved once and pages are committed when they are first touched. Requests up
//! to 2 KiB take a slot of a slab (64 slots of one power of two), larger ones a span of 4 KiB pages
//! from a buddy allocator, of which the unused tail goes straight back. Blocks are aligned to 64
//! bytes, spans to 4096. A span for bytes that are only announced is reserved as a whole and handed
//! out as they come ([`Arena::reserve`]); what is not handed out serves other requests before one
//! is refused. What the arena knows about its blocks lies outside of their mapping, behind a guard
//! page, so writing past a block cannot corrupt it. The owner alone allocates. Blocks come back
//! from any thread over one lock-free list, which the owner empties while it allocates. The mapping
//! lives until the arena and its last buffer are gone.
//!
//! An arena with a [`Headroom`] goes beyond its capacity while the machine has memory left: in a
//! second mapping, which is there as long as something lies in it.
//!
//! # Unsafe code
//! Only in `mapping.rs` (address space), `board.rs` (memory that another process writes),
//! `block.rs` (blocks and their counts), `heap.rs` (heap memory as a base and a capacity),
//! `lease.rs` (borrowed parts and their counts), `buffer.rs` and `buffer_mut.rs` (pointer and
//! length as a slice), `buffer/parts.rs` (counted references become buffers), `pieces.rs` (parts of
//! one buffer become buffers), `arena.rs` (one block becomes one buffer), `together.rs` (references
//! that wait to be taken off their count together), `ahead.rs` (a hint to the CPU), `forks.rs`
//! (what the C library calls at a fork), `exposed.rs` (a child's memory in place of what it shared
//! with its parent), and `sync.rs` (for loom only).
//!
//! # Checking it
//! - `cargo test -p grpcxx-memory`: unit, random and allocation-counting tests.
//! - `scripts/nightly loom`: all interleavings of giving blocks back, of the reference count and of
//!   closing the arena.
//! - `MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test -p grpcxx-memory`: under Miri and
//!   loom the mapping is heap memory.
#![deny(unsafe_code)]

mod ahead;
mod arena;
mod beyond;
mod block;
#[cfg(not(loom))]
mod board;
#[cfg(loom)]
#[path = "board/model.rs"]
mod board;
mod buddy;
mod buffer;
mod buffer_mut;
mod control_group;
mod device;
mod exposed;
pub mod forks;
mod headroom;
mod heap;
mod lease;
mod mapping;
mod options;
mod pieces;
mod places;
mod recent;
mod reclaim;
mod region;
mod reservations;
mod sealed;
mod slabs;
mod sync;
mod together;

pub use ahead::prefetch;
pub use arena::{Arena, ArenaRoom, ArenaStatistics, OutOfMemory};
pub use board::{BOARD_WORDS, Board, BoardView};
pub use buffer::{Buffer, Parts};
pub use buffer_mut::BufferMut;
pub use control_group::cpu_quota;
pub use device::{DeviceBuffer, DeviceMemory, DmaBuf};
pub use forks::OwnFd;
pub use headroom::{Headroom, Shortage};
pub use lease::{Leases, Lender};
pub use options::{
    ARENA_BYTES_MAX, ArenaOptions, CAPACITY_BYTES_DEFAULT, MEMORY_SHARE_PERCENT,
    usable_memory_bytes,
};
pub use region::{Region, RegionKind, SharedMemory};
pub use sealed::sealed_len_bytes;
pub use together::DropBatch;
