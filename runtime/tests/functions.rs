//! Functions that wait: for a thread, or for what they await.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use grpcxx_rpc::{GraphCall, Shape, Tensor, Text};
use grpcxx_runtime::{Engine, Remote, block_on, local};

use crate::page::told;

const MIB: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

fn both() -> (Engine, Engine, Remote) {
    let server = Engine::builder()
        .listen("127.0.0.1:0")
        .shards(1)
        .compute_threads(1)
        .arena_bytes(64 * MIB)
        .start()
        .unwrap();
    let caller = Engine::builder().shards(1).start().unwrap();
    let client = caller.client();
    let peer = client.peer(&server.local_addr().unwrap().to_string());
    let remote = Remote::new(client, peer.unwrap());
    (server, caller, remote)
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn arena_used_bytes(server: &Engine) -> usize {
    told(server, "grpcxx_arena_used_bytes{") as usize
}

#[test]
fn a_call_that_is_withdrawn_before_it_has_a_thread_lets_go_of_its_tensors_and_never_runs() {
    let (server, _caller, remote) = both();
    let (release, held) = channel::<()>();
    let held = Mutex::new(held);
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    server.register_fn("holds", move |_: GraphCall| {
        counted.fetch_add(1, Ordering::SeqCst);
        // Ends once the sender is gone.
        let _ = held.lock().unwrap().recv();
        Ok(Vec::new())
    });
    let holding = remote.run(GraphCall::new("holds"));
    until("the thread is held", || runs.load(Ordering::SeqCst) == 1);
    for _ in 0..100 {
        let feed = Tensor::from_slice(Shape::vector(MIB), &vec![7_u8; MIB]).unwrap();
        let call = remote.run(GraphCall::new("holds").with_feed("x", feed));
        until("it waits there", || arena_used_bytes(&server) >= MIB);
        drop(call);
        until("its tensor is gone", || arena_used_bytes(&server) < MIB);
    }
    drop(release);
    holding.wait().unwrap();
    // Behind all others of this peer.
    remote.run(GraphCall::new("holds")).wait().unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

#[test]
fn functions_that_wait_for_functions_of_their_own_engine_leave_those_a_thread() {
    const CALLS: u64 = 40;
    const DEPTH: u64 = 4;
    let (server, _caller, remote) = both();
    let address = server.local_addr().unwrap().to_string();
    let own = server.connect(&address).unwrap();
    let deeper = |depth: u64| {
        let call = GraphCall::new("deeper").with_fetch("depth");
        call.with_feed("depth", Tensor::scalar(depth))
    };
    // Each calls the next one, and adds 1 to what that says.
    server.register_fn("deeper", move |call: GraphCall| {
        let depth: u64 = call.feeds[0].1.elements()?[0];
        let below = match depth {
            0 => 0,
            _ => {
                let result = own.run(deeper(depth - 1)).wait()?;
                result.get("depth")?.elements::<u64>()?[0] + 1
            }
        };
        Ok(vec![("depth".into(), Tensor::scalar(below))])
    });
    let calls: Vec<_> = (0..CALLS).map(|_| remote.run(deeper(DEPTH))).collect();
    let begun = Instant::now();
    for call in calls {
        let left = PATIENCE.saturating_sub(begun.elapsed());
        let result = block_on(call, Some(left))
            .expect("no function waits for ever")
            .unwrap();
        let depth = result.get("depth").unwrap();
        assert_eq!(depth.elements::<u64>().unwrap()[..], [DEPTH]);
    }
}

#[test]
fn as_many_asynchronous_functions_begin_at_once_as_a_turn_finds() {
    const CALLS: usize = 3000;
    let (server, _caller, remote) = both();
    server.register_async("rests", |_: GraphCall| async {
        local::sleep(Duration::from_millis(1)).await;
        Ok(Vec::<(Text, Tensor)>::new())
    });
    // The shard is held until all calls are on their way.
    let sent = Arc::new(Barrier::new(2));
    let seen = Arc::clone(&sent);
    let held = server.shards().invoke_on(0, move || {
        seen.wait();
        thread::sleep(Duration::from_millis(50));
    });
    let calls: Vec<_> = (0..CALLS)
        .map(|_| remote.run(GraphCall::new("rests")))
        .collect();
    sent.wait();
    for call in calls {
        call.wait().unwrap();
    }
    held.wait().unwrap();
}
