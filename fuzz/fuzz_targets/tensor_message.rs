#![no_main]

#[path = "../../runtime/tests/support/fuzz.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|data: &[u8]| support::tensor_message(data));
