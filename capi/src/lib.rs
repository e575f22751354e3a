//! The C interface of grpcxx. Its documentation is the header, `include/grpcxx.h`; this crate is
//! what stands behind it.
//!
//! Programs in Rust find here what the other crates do not have: facts of the machine, the log of a
//! process, the start and the end of an engine that tells that log of itself, and groups as C holds
//! them.
//!
//! Opaque handles, codes, ownership in the names, null checked, no unwinding across the boundary.
#![deny(unsafe_code)]

mod begin;
mod boundary;
mod call;
mod dtype;
mod endpoint_map;
mod engine;
pub mod facts;
mod flight;
pub mod group;
pub mod held;
mod layout;
pub mod log;
mod metrics;
pub mod notices;
mod options;
mod peer;
mod rendezvous;
mod request;
mod responder;
mod service;
pub mod start;
mod status;
mod tensor;
mod version;
