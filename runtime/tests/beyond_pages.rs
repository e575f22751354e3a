//! Pages beyond an arena go back to the system. Alone in its process, whose pages it counts.

mod greedy;

use std::time::{Duration, Instant};

use greedy::*;
use grpcxx_memory::Headroom;
use grpcxx_runtime::Engine;

#[test]
fn memory_beyond_the_arena_is_given_back_after_its_use() {
    let server = Engine::start(options("ps", 16 * MIB).with(|options| {
        let arena = options.arena.as_mut().unwrap();
        arena.headroom = Some(Headroom::new(1 << 30, || Some(600 * MIB)));
    }))
    .unwrap();
    let worker = Engine::start(options("worker", 256 * MIB)).unwrap();
    honest_push(&worker, &server, 100 * MIB).unwrap();
    let full = resident_bytes();
    honest_push(&worker, &server, 1).unwrap();
    drop(worker);
    let until = Instant::now() + PATIENCE;
    // The shard sleeps meanwhile, and nobody calls.
    while resident_bytes() + (90 << 20) > full {
        assert!(Instant::now() < until, "it keeps its pages");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = pages.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}
