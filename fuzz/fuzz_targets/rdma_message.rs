#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| grpcxx_rdma::fuzz::rdma_message(data));
