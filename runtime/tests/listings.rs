//! Peers that ask for listings of a store with long names, and read none.

mod greedy;

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use greedy::*;
use grpcxx_rpc::{Code, Tensor, Text};
use grpcxx_runtime::{Engine, STORE_LIST};

const QUESTIONS: u64 = 40;

/// Length of all names together: 63 MiB.
const NAMES_BYTES: u64 = 1000 * 66_000;

/// A server whose store has long names.
fn server() -> Engine {
    let server = Engine::start(options("ps", 64 * MIB)).unwrap();
    let name = |index| Text::from(format!("{index:0>65500}").as_str());
    let tensors = (0..1000).map(|index| (name(index), Tensor::scalar(1.0_f32)));
    server.store_put(tensors.collect()).unwrap();
    server
}

fn ask(stream: &mut TcpStream, tag: u64) {
    let question = graph_call(tag, STORE_LIST, 0, 0, &["names"]);
    stream.write_all(&question).unwrap();
}

/// Waits until so many calls were answered or refused, and some more, so that their answers are
/// made.
fn await_requests(server: &Engine, requests: u64) {
    let until = Instant::now() + PATIENCE;
    while server.counters().requests < requests {
        assert!(Instant::now() < until, "the server takes no requests");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(100));
}

/// Most memory that this process has had since [`forget_peak`].
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = (status.lines()).find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.unwrap().trim().strip_suffix("kB").unwrap().trim();
    kib.parse::<u64>().unwrap() << 10
}

fn forget_peak() {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
}

/// One test: what the process has had at most is of all tests that run in it.
#[test]
fn listings_that_nobody_reads_take_memory_once_or_the_part_of_a_peer() {
    listings_of_one_store_take_memory_once();
    listings_of_a_store_that_changes_take_no_more_than_their_part();
}

fn listings_of_one_store_take_memory_once() {
    let server = server();
    forget_peak();
    let before = peak_bytes();
    let mut greedy = dial(&server);
    for tag in 0..QUESTIONS {
        ask(&mut greedy, tag);
    }
    await_requests(&server, QUESTIONS);
    let grown = peak_bytes() - before;
    assert!(grown < NAMES_BYTES * 3 / 2, "grown by {grown} bytes");
}

fn listings_of_a_store_that_changes_take_no_more_than_their_part() {
    let server = server();
    forget_peak();
    let before = peak_bytes();
    let mut greedy = dial(&server);
    let change = |number: u64| {
        let name = Text::from(format!("changed-{number}").as_str());
        let changed = vec![(name, Tensor::scalar(1.0_f32))];
        server.store_put(changed).unwrap();
    };
    for tag in 0..QUESTIONS {
        ask(&mut greedy, tag);
        await_requests(&server, tag + 1);
        change(tag);
    }
    let grown = peak_bytes() - before;
    assert!(grown < NAMES_BYTES * 4, "grown by {grown} bytes");

    let statuses: Vec<i32> = (0..QUESTIONS).map(|_| read_answer(&mut greedy).0).collect();
    let refused = Code::ResourceExhausted as i32;
    let answered = statuses.iter().filter(|status| **status == 0).count();
    let exhausted = statuses.iter().filter(|status| **status == refused).count();
    assert!((1..4).contains(&answered), "{statuses:?}");
    assert_eq!(answered + exhausted, statuses.len(), "{statuses:?}");
    // Who has read is served again.
    ask(&mut greedy, QUESTIONS);
    assert_eq!(read_answer(&mut greedy).0, 0);
}
