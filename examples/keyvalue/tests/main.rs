//! Tests of the store and of its program: one program, which is compiled and linked once.

#[path = "../../../runtime/tests/support/ports.rs"]
mod ports;
mod program;
mod store;
