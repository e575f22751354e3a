use std::sync::Arc;
use std::sync::atomic::Ordering;

use grpcxx_rdma::sim::SimFabricOptions;

use crate::gpu::Gpu;
use crate::migrating::Pair;

/// Where the RDMA device can read the memory, peers read it there; what is too short for that is
/// copied first.
#[test]
fn device_memory_that_can_be_registered_is_read_where_it_is() {
    let (read, copied) = exchange(true);
    assert_eq!((read, copied), (1_100_000 * ROUNDS, 2 * ROUNDS));
}

#[test]
fn device_memory_that_cannot_be_registered_takes_the_staging_path() {
    let (read, copied) = exchange(false);
    // The copies are foreign memory: the longer ones are registered and read, the others are copied
    // into messages.
    assert_eq!((read, copied), (1_100_000 * ROUNDS, 4 * ROUNDS));
}

#[test]
fn device_memory_takes_the_staging_path_where_there_is_no_rdma() {
    let mut pair = Pair::new(1, [true, false]);
    let gpu = Gpu::with_stripes(STRIPE_BYTES);
    pair.place_payload(0, Arc::clone(&gpu));
    assert!(!pair.move_over());
    for size in SIZES {
        assert!(pair.send(0, size));
    }
    pair.until("everything is read", Pair::is_drained);
    assert_eq!(gpu.copies.load(Ordering::Relaxed), SIZES.len());
    pair.settle();
}

/// Sends from device memory, which the peer checks; returns the bytes that it has read, and how
/// many copies were made.
fn exchange(has_dma_buf: bool) -> (u64, u64) {
    let fabric = SimFabricOptions {
        has_dma_buf,
        ..SimFabricOptions::reliable(1)
    };
    let mut pair = Pair::with(1, [true, true], 64, fabric);
    let gpu = Gpu::with_stripes(STRIPE_BYTES);
    assert!(pair.move_over());
    pair.exchange();
    let links = pair.links_over_rdma(0);
    let registered = links.register_device(Arc::clone(&gpu) as _);
    assert_eq!(registered.is_ok(), has_dma_buf, "{registered:?}");
    pair.place_payload(0, Arc::clone(&gpu));
    for _ in 0..ROUNDS {
        for size in SIZES {
            assert!(pair.send(0, size));
        }
        pair.until("everything is read", Pair::is_drained);
    }
    let read = pair.links_over_rdma(1).counters();
    let copies = gpu.copies.load(Ordering::Relaxed) as u64;
    pair.settle();
    (read.read_bytes + read.staged_read_bytes, copies)
}

const SIZES: [usize; 4] = [100, 5000, 100_000, 1_000_000];
const STRIPE_BYTES: usize = 1_000_000;
const ROUNDS: u64 = 3;
