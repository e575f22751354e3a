#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| grpcxx_control::fuzz::tensor_proto(data));
