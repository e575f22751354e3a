//! Calls of several peers that wait for a thread of the compute pool.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use grpcxx_rpc::{Fetched, GraphCall, Status};
use grpcxx_runtime::Engine;

use crate::greedy::{graph_call, options, read_answer, settle};
use crate::stranger::{Hostile, MEMBER, STRANGER};

#[test]
fn a_flood_of_calls_lets_those_of_another_peer_take_their_turn() {
    const FLOOD: u64 = 1000;
    let options = options("ps", 64 << 20).with(|options| options.compute_threads = Some(1));
    let server = Engine::start(options).unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    server.register_fn("slow", move |_: GraphCall| -> Result<Fetched, Status> {
        std::thread::sleep(Duration::from_millis(2));
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(Fetched::default())
    });
    let mut flooding = Hostile::at(STRANGER, &server);
    let calls: Vec<u8> = (0..FLOOD)
        .flat_map(|tag| graph_call(tag, "slow", tag + 1, 0, &[]))
        .collect();
    flooding.stream.write_all(&calls).unwrap();
    settle(&server, 1);
    let mut honest = Hostile::at(MEMBER, &server);
    for step in 0..5 {
        let before = runs.load(Ordering::Relaxed);
        let call = graph_call(step, "slow", FLOOD + 1 + step, 0, &[]);
        honest.stream.write_all(&call).unwrap();
        assert_eq!(read_answer(&mut honest.stream).0, 0);
        let between = runs.load(Ordering::Relaxed) - before;
        assert!(between < 50, "{between} calls of the flood were run before");
    }
    for _ in 0..FLOOD {
        assert_eq!(read_answer(&mut flooding.stream).0, 0);
    }
}
