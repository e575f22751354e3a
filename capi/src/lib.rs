//! The C interface of grpcxx. Its documentation is the header, `include/grpcxx.h`; this crate is what stands behind
//! it.
//!
//! Opaque handles, codes, ownership in the names, null checked, no unwinding across the boundary.
#![deny(unsafe_code)]

mod boundary;
mod dtype;
mod status;
mod version;
