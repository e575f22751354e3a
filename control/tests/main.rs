//! Tests of the gRPC endpoint: one program, which is compiled and linked once. A test that counts
//! what its whole process has is a program of its own, see `Cargo.toml`.

mod documentation;
mod endpoint;
mod generated;
mod interop;
mod metrics;
mod policy;
#[path = "../../runtime/tests/support/ports.rs"]
mod ports;
#[path = "interop/python.rs"]
mod python;
mod registered;
mod stop;
mod support;
mod tls;
