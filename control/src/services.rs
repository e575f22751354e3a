//! Generated clients and servers of `tensorflow.WorkerService` and `tensorflow.MasterService`.
//!
//! Their messages are those of [`grpcxx_rpc::proto`]. The test `generated` compares them with the
//! `.proto` files and, when asked, rewrites them.

#![allow(missing_docs, unreachable_pub)]

#[rustfmt::skip]
#[path = "generated/services.rs"]
mod generated;

pub use generated::*;

/// The file descriptors of the services and of all their messages, serialized as a
/// `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/services.descriptors");
