#![no_main]

#[path = "../../transport/shm/tests/support/hostile.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|data: &[u8]| hostile::peer(data));
