//! TensorFlow's messages: plain methods over star carry them serialized, and so does gRPC.
//!
//! Generated from the files under `proto/`; the test `proto` compares and, when asked, rewrites
//! them.

#![allow(missing_docs)]

#[rustfmt::skip]
mod tensorflow;

pub use tensorflow::*;
