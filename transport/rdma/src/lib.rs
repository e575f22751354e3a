//! RDMA links over verbs.
//!
//! Small frames travel eagerly, several of them in one message, into memory that the receiver has
//! posted. Large payload is offered: the receiver reads it from the sender's registered memory
//! straight into its final place, in chunks that are on their way together, and then releases it.
//! Credits keep a receiver from being overrun, and a reader that pauses stops its own link only.
//! `docs/rdma.md` describes the messages.
//!
//! - [`RdmaLinks`]: links whose set-up data the caller carries to the peer, for connections that
//!   migrate.
//! - [`RdmaTransport`]: the same as a [`Transport`](grpcxx_transport::Transport), with another one
//!   beside it.
//! - [`RdmaMedium`]: lets links that begin on another transport migrate to RDMA where both ends
//!   can.
//! - [`VerbsAdapter`]: real devices. libibverbs is loaded when it is first wanted, so a program
//!   with this crate starts without it, and [`Unavailable`] says why RDMA is not used.
//! - [`sim`]: a device in software, with faults.
//!
//! The protocol (`wire`, `credits`, `outbound`, `incoming`, `blob`) does no I/O. Memory that the
//! device or the peer may touch is given back only after its request completed or its queue is
//! gone. Unsafe code is confined to `verbs` (the C interface), `queue_context` (memory that is
//! posted), `adapter` (what posting demands) and `sim` (copies as a device does).
//!
//! Each link has its own receives, no shared queue of them: credits promise every message a place,
//! and a shared queue would have to hold the sum of all promises to keep them, or let senders wait
//! for receivers that are not ready.

#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "declares what posting demands")]
mod adapter;
mod blob;
mod counters;
mod credits;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod incoming;
mod link;
mod links;
mod migrating;
mod options;
mod outbound;
#[expect(unsafe_code, reason = "memory that the device may touch")]
mod queue_context;
mod reading;
mod registry;
mod setup;
#[expect(unsafe_code, reason = "copies memory as a device does")]
pub mod sim;
mod transport;
mod turn;
mod verbs;
mod wire;

pub use adapter::{
    Adapter, AdapterLimits, Completion, CompletionEvent, Endpoint, Fault, Queue, QueueDepth,
    QueueTag, Receive, Registration, Request, RequestFailure, Work,
};
pub use blob::{BLOB_BYTES, Blob};
pub use counters::RdmaCounters;
pub use credits::CreditLimits;
pub use links::RdmaLinks;
pub use migrating::{NearPeers, RdmaMedium};
pub use options::RdmaOptions;
pub use transport::RdmaTransport;
pub use verbs::{
    DeviceReport, PortReport, Unavailable, VerbsAdapter, VerbsQueue, VerbsRegistration, devices,
};
