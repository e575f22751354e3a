//! A shared-nothing tensor RPC runtime that speaks GRPC++, the star protocol of DeepRec.

#![forbid(unsafe_code)]

pub mod local;
pub mod model;

pub use grpcxx_memory::{Buffer, BufferMut};
pub use grpcxx_rpc::*;
pub use grpcxx_runtime::*;
