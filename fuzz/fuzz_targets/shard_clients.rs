#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| grpcxx_runtime::fuzz::shard_clients(data));
