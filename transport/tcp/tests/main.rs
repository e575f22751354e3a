//! Tests of links over TCP: one program, which is compiled and linked once. A test that starts
//! itself as another process, or counts what its own has, is a program of its own, see
//! `Cargo.toml`.

mod conformance;
mod links;
mod muted;
mod park;
#[path = "../../../runtime/tests/support/ports.rs"]
mod ports;
mod steady_state;
mod support;
