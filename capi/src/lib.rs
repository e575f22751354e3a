//! The C interface of grpcxx. Its documentation is the header, `include/grpcxx.h`; this crate is what stands behind
//! it.
//!
//! Opaque handles, codes, ownership in the names, null checked, no unwinding across the boundary.
#![deny(unsafe_code)]

mod begin;
mod boundary;
mod call;
mod dtype;
mod endpoint_map;
mod engine;
mod facts;
mod flight;
mod layout;
mod log;
mod notices;
mod options;
mod peer;
mod rendezvous;
mod request;
mod responder;
mod service;
mod status;
mod tensor;
mod version;
