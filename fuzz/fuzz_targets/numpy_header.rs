#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| grpcxx::model::fuzz::numpy_header(data));
