//! Generated clients and servers of `tensorflow.WorkerService`, `tensorflow.MasterService` and
//! `grpcxx.v1.Inspector`.
//!
//! Messages of TensorFlow are those of [`grpcxx_rpc::proto`]. The test `generated` compares them
//! with the `.proto` files and, when asked, rewrites them.

#![allow(missing_docs, unreachable_pub)]

#[rustfmt::skip]
#[path = "generated/services.rs"]
mod generated;

pub use generated::*;

/// What tells what a task waits for: messages, a client and a server.
#[rustfmt::skip]
#[path = "generated/inspect.rs"]
pub mod inspect;

/// The file descriptors of the inspector, serialized as a `FileDescriptorSet`.
pub const INSPECT_DESCRIPTORS: &[u8] = include_bytes!("generated/inspect.descriptors");

/// The file descriptors of the services and of all their messages, serialized as a
/// `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/services.descriptors");
