#![no_main]

#[path = "../../rpc/tests/support/mod.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|data: &[u8]| support::streams::streams(data));
