//! Somebody else at the address where a group meets, or rank 0 when it is behind.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use grpcxx_collectives::{Group, JoiningGroup};
use grpcxx_rpc::{Code, GraphCall, Shape, Tensor};
use grpcxx_runtime::Engine;

use super::ports::held_address;

/// Answers connections by `says`, until as many have come as are given.
fn stranger(listener: TcpListener, says: &'static [u8], connections: usize) -> JoinHandle<()> {
    thread::spawn(move || {
        for stream in listener.incoming().take(connections) {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 512]);
            let _ = stream.write_all(says);
        }
    })
}

fn engine(index: u32, address: &str) -> Engine {
    let builder = Engine::builder().task("worker", index).listen(address);
    let builder = builder.shared_memory(false).rdma(false);
    builder.arena_bytes(64 << 20).start().unwrap()
}

/// What strangers say, and what the error tells of it.
const ANSWERS: [(&[u8], &str); 3] = [
    (b"", "was lost"),
    (
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        "begins with \"HTTP\"",
    ),
    (&[0xff; 4096], "begins with \"\\xff"),
];

#[test]
fn a_rank_goes_on_past_a_stranger_that_leaves() {
    for (says, _) in ANSWERS {
        // The host of the group listens where the stranger did.
        let place = held_address().to_string();
        let listener = TcpListener::bind(&place).unwrap();
        let leaves = stranger(listener, says, 2);
        let guest = engine(1, "127.0.0.1:0");
        let builder = Group::builder(1, 2, place.clone()).join_timeout(Duration::from_secs(60));
        let joining = builder.begin(&guest).unwrap();
        let joins = thread::spawn(move || joining.wait().map(|_| ()));
        leaves.join().unwrap();
        let host = engine(0, &place);
        Group::builder(0, 2, place).join(&host).unwrap();
        joins.join().unwrap().unwrap();
    }
}

#[test]
fn a_stranger_that_stays_is_told_when_the_time_is_over() {
    for (says, words) in ANSWERS {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap().to_string();
        let _stays = stranger(listener, says, usize::MAX);
        let guest = engine(1, "127.0.0.1:0");
        let limit = Duration::from_millis(700);
        let started = Instant::now();
        let builder = Group::builder(1, 2, place.clone()).join_timeout(limit);
        let error = builder.join(&guest).unwrap_err();
        let text = error.message;
        assert!(started.elapsed() >= limit, "{text}");
        assert!(text.contains(&place) && text.contains(words), "{text}");
    }
}

#[test]
fn a_stranger_that_says_nothing_costs_no_more_than_the_time_to_meet() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = listener.local_addr().unwrap().to_string();
    let guest = engine(1, "127.0.0.1:0");
    let limit = Duration::from_secs(3);
    let started = Instant::now();
    let builder = Group::builder(1, 2, place.clone()).join_timeout(limit);
    let text = builder.join(&guest).unwrap_err().message;
    let taken = started.elapsed();
    assert!(limit <= taken && taken < 2 * limit, "{taken:?}: {text}");
    assert!(
        text.contains(&place) && text.contains("within 3s"),
        "{text}"
    );
}

#[test]
fn a_rank_of_another_version_is_told() {
    let engines = [engine(0, "127.0.0.1:0"), engine(1, "127.0.0.1:0")];
    let place = engines[0].local_addr().unwrap().to_string();
    let builder = Group::builder(0, 2, place.clone()).name("versions");
    let _joining = builder.begin(&engines[0]).unwrap();
    let text = |text: &str| Tensor::from_strings(Shape::vector(1), [text.as_bytes()]).unwrap();
    // As ranks said it that did not tell their version.
    let mut greeting = GraphCall::new("grpcxx.group.join/versions")
        .with_feed("rank", Tensor::scalar(1_u32))
        .with_feed("size", Tensor::scalar(2_u32))
        .with_feed("generation", Tensor::scalar(0_u64))
        .with_feed("incarnation", Tensor::scalar(engines[1].incarnation()))
        .with_feed("address", text("127.0.0.1:1"))
        .with_feed("device", text(&engines[1].device_attributes().name))
        .with_feed("board", text(""));
    for name in ["step", "addresses", "devices", "incarnations", "boards"] {
        greeting = greeting.with_fetch(name);
    }
    let remote = engines[1].connect(&place).unwrap();
    let remote = remote.with_timeout(Duration::from_secs(20));
    let refused = remote.run(greeting).wait().unwrap_err();
    assert_eq!(refused.code, Code::FailedPrecondition, "{refused}");
    let words = "rank 1 speaks version 0 of groups and rank 0 version 1";
    assert!(refused.message.contains(words), "{refused}");
}

#[test]
fn a_rank_of_the_next_generation_waits_until_rank_0_is_there() {
    let engines = [engine(0, "127.0.0.1:0"), engine(1, "127.0.0.1:0")];
    let place = engines[0].local_addr().unwrap().to_string();
    let begin = |rank: u32, generation: u64| {
        let builder = Group::builder(rank, 2, place.clone()).generation(generation);
        let builder = builder.join_timeout(Duration::from_secs(20));
        builder.begin(&engines[rank as usize]).unwrap()
    };
    let joins = |joining: JoiningGroup| thread::spawn(move || joining.wait());
    for joins in [0, 1].map(|rank| joins(begin(rank, 0))) {
        joins.join().unwrap().unwrap();
    }
    let ahead = joins(begin(1, 1));
    thread::sleep(Duration::from_millis(300));
    let behind = joins(begin(0, 1));
    for joins in [ahead, behind] {
        joins.join().unwrap().unwrap();
    }
}
