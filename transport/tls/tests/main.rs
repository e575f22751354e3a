//! Tests of links over TLS: one program, which is compiled and linked once.

mod conformance;
#[path = "support/fuzz.rs"]
mod fuzz;
mod fuzzed;
mod handshakes;
mod peers;
#[path = "../../../runtime/tests/support/ports.rs"]
mod ports;
mod steady_state;
mod support;
