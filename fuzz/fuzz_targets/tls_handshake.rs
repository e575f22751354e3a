#![no_main]

#[path = "../../transport/tls/tests/support/fuzz.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|data: &[u8]| support::tls_handshake(data));
