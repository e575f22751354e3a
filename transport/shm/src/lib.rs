//! Links between processes of one host and user, over shared memory.
//!
//! A link is a memory file with a ring for each direction, and a UNIX socket over which the file
//! was passed. Heads and payloads are copied into a ring and out of it, straight into their
//! landing; payloads in an arena that was made to be shared are lent instead: the ring says where
//! they lie, and the receiver maps that arena read-only and gives the loan back when the last
//! reference to the tensor is dropped. Only an end that has dialled goes on with lent memory, which
//! its owner can still write; an end that was dialled copies it. Payloads elsewhere are copied into
//! an arena of the transport, once, and lent too, if the receiver went on with what it was lent
//! before; if it brings memory of its own, a large one that lies in huge pages is copied once, by
//! the receiver out of the sender's memory, where the system lets it (`process_vm_readv`). All else
//! passes through the ring. The socket wakes who sleeps, passes the descriptors of arenas, and
//! tells by its end that the other process is gone. Nothing has a name in a file system, so nothing
//! is left behind, whatever way a process ends. `docs/wire.md` holds the layout.
//!
//! [`ShmTransport`] has such links only. [`ShmMedium`] adds them to another transport with
//! [`Migrating`](grpcxx_transport::Migrating): each link begins there, and migrates to shared
//! memory if both ends can.
//!
//! # What a peer can do
//! The other end may be any process of the same user, and may write anything into the memory at any
//! time. Indices, lengths and offsets are copied before they are checked and used, bytes are copied
//! before anybody parses them, and memory is mapped only if it is sealed against becoming shorter.
//! Arenas are sealed, so that a peer reads them and never writes. A process is known by a
//! descriptor and not by its number, which another one may have next. A peer that breaks the rules
//! loses its link. What a peer shows may be memory that its process lets wait for as long as it
//! likes; who does not trust other processes of its user so far sets [`ShmOptions::show_bytes_min`]
//! to `usize::MAX`.
//!
//! # Unsafe code
//! Only in `memory` (mappings, and copies to and from them), `segment` (the atomics at the start of
//! one) and `sys` (a question to a socket, one about pages, and reads of another process).

#![deny(unsafe_code)]

#[cfg(not(all(loom, test)))]
mod bounce;
#[cfg(not(all(loom, test)))]
mod channel;
mod counters;
#[cfg(not(all(loom, test)))]
mod driver;
mod garbage;
#[cfg(not(all(loom, test)))]
mod link;
#[cfg(not(all(loom, test)))]
mod loans;
#[cfg(not(all(loom, test)))]
mod mapped;
mod memory;
mod message;
#[cfg(not(all(loom, test)))]
mod migrating;
mod options;
#[cfg(not(all(loom, test)))]
#[cfg(not(all(loom, test)))]
mod poller;
mod record;
#[cfg(not(all(loom, test)))]
mod rendezvous;
mod ring;
mod segment;
#[cfg(not(all(loom, test)))]
mod sight;
#[cfg(not(all(loom, test)))]
mod socket;
mod sync;
#[cfg(not(all(loom, test)))]
#[expect(
    unsafe_code,
    reason = "a question to a socket, one about pages, and reads of another process"
)]
mod sys;
#[cfg(not(all(loom, test)))]
mod transport;
#[cfg(not(all(loom, test)))]
mod wakeup;

pub use counters::ShmCounters;
#[cfg(not(all(loom, test)))]
pub use mapped::mapped_bytes;
#[cfg(not(all(loom, test)))]
pub use migrating::ShmMedium;
pub use options::{RING_BYTES_MAX, RING_BYTES_MIN, ShmOptions};
#[cfg(not(all(loom, test)))]
pub use transport::{Accepted, ShmTransport};

/// How long the two ends of a link may take to agree on their memory.
#[cfg(not(all(loom, test)))]
pub(crate) const HANDSHAKE_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(1);
