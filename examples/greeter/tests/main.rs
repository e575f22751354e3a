//! Tests of the services: one program, which is compiled and linked once. A test that sets what its
//! whole process has is a program of its own, see `Cargo.toml`.

mod bad_input;
mod corner;
#[path = "interop/cpp.rs"]
mod cpp;
#[path = "support/door.rs"]
mod door;
mod grpc;
mod grpc_streams;
mod moved;
#[path = "../../../runtime/tests/support/ports.rs"]
mod ports;
mod program;
#[path = "../../../control/tests/interop/python.rs"]
mod python;
mod requests;
mod star;
mod streams;
mod support;
mod tensors;
