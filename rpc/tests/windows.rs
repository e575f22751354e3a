//! Payload that gets its memory bit by bit, as its bytes come: announced bytes are not owned bytes.

use grpcxx_memory::{Arena, ArenaOptions};
use grpcxx_rpc::{
    Code, ConnectionLimits, Features, Method, NamedTensors, Request, Response, Status,
};

use crate::support::make::{bytes_tensor, floats, fuse, graph, message, named, receive};
use crate::support::{Pair, tensors};

/// Frames go in chunks to peers that take them.
fn limits() -> ConnectionLimits {
    ConnectionLimits::default().with(|limits| {
        limits.whole_frame_bytes = 2000;
        limits.chunk_bytes = 1500;
    })
}

fn pair(features: Features) -> Pair {
    pair_within(limits(), features)
}

fn pair_within(limits: ConnectionLimits, features: Features) -> Pair {
    let mut pair = Pair::with_limits(limits, features, features);
    if !features.is_empty() {
        pair.answer_announcement();
    }
    pair
}

/// No extension, whole frames with heads first, and frames in chunks.
fn kinds() -> [Features; 4] {
    [
        Features::NONE,
        Features::HEADS_FIRST,
        Features::CHUNKS,
        Features::ALL,
    ]
}

/// Gives both ends memory for so many bytes more than have come, and no piece of more than so many.
fn narrow(pair: &mut Pair, window_bytes: usize, piece_bytes_max: usize) {
    for landings in [&mut pair.client.landings, &mut pair.server.landings] {
        landings.window_bytes = Some(window_bytes);
        landings.piece_bytes_max = piece_bytes_max;
    }
}

#[test]
fn all_kinds_of_calls_cross_through_windows() {
    for features in kinds() {
        for (window_bytes, piece_bytes) in [(1, 1500), (7, usize::MAX), (1000, 37), (5000, 1)] {
            let mut pair = pair(features);
            narrow(&mut pair, window_bytes, usize::MAX);
            pair.piece_bytes = piece_bytes;
            let large = |seed| bytes_tensor(6000, seed);
            pair.round_trip(
                message(Method::RegisterGraph, &[7; 3000]),
                Ok(Response::Message(vec![8; 5000].into())),
            );
            pair.round_trip(receive("k"), tensors([large(1)]));
            pair.round_trip(
                fuse(&["a", "b", "c", "d"]),
                tensors([large(1), floats(&[3.0]), large(2), bytes_tensor(0, 0)]),
            );
            let name = "n".repeat(3000);
            pair.round_trip(
                graph("f", vec![("x", large(2)), ("y", large(3))], &[&name, "a"]),
                Ok(Response::Fetched(named(vec![
                    (&name, large(3)),
                    ("a", large(4)),
                ]))),
            );
            let text = "because ".repeat(400);
            pair.round_trip(receive("k"), Err(Status::new(Code::Aborted, text)));
        }
    }
}

/// A request for which the server finds too little memory when some of it has come.
fn fails_at_the_server(pair: &mut Pair, request: Request) {
    let call = pair.call(request);
    pair.carry_requests();
    assert_eq!(pair.server.end.poll_request(), None);
    pair.carry_responses();
    let finished = pair.finished();
    assert_eq!(finished.call, call);
    assert_eq!(finished.result.unwrap_err().code, Code::ResourceExhausted);
}

/// An answer for which the client finds too little memory when some of it has come.
fn fails_at_the_client(pair: &mut Pair, request: Request, response: Response) {
    let call = pair.call(request);
    pair.carry_requests();
    let id = pair.request().id;
    assert!(pair.server.end.answer(id, Ok(response)));
    pair.carry_responses();
    let finished = pair.finished();
    assert_eq!(finished.call, call);
    assert_eq!(finished.result.unwrap_err().code, Code::ResourceExhausted);
}

#[test]
fn what_finds_no_more_memory_fails_its_call_alone() {
    for features in kinds() {
        for piece_bytes in [1, 100, 1500, usize::MAX] {
            let mut pair = pair(features);
            pair.piece_bytes = piece_bytes;
            let (small, large) = (|| bytes_tensor(50, 1), || bytes_tensor(7000, 2));
            let name = "n".repeat(7000);
            let check = |pair: &mut Pair| {
                narrow(pair, 600, 6000);
                let request = message(Method::RegisterGraph, &[7; 7000]);
                fails_at_the_server(pair, request);
                fails_at_the_server(pair, graph("f", vec![("x", small())], &[&name]));
                let feeds = vec![("x", small()), ("y", large()), ("z", large())];
                fails_at_the_server(pair, graph("f", feeds, &["a"]));
                fails_at_the_server(pair, graph("f", vec![("x", large())], &["a"]));
                let body = Response::Message(vec![8; 7000].into());
                fails_at_the_client(pair, message(Method::RegisterGraph, &[7; 30]), body);
                let answer = tensors([small(), large(), small()]).unwrap();
                fails_at_the_client(pair, fuse(&["a", "b", "c"]), answer);
                let answer = tensors([large()]).unwrap();
                fails_at_the_client(pair, receive("a"), answer);
                pair.server.landings.piece_bytes_max = 20_000;
                let answer = Response::Fetched(named(vec![(&name, small())]));
                fails_at_the_client(pair, graph("f", vec![], &[&name]), answer);
                // All that was announced has been taken off the link.
                pair.round_trip(receive("k"), tensors([small()]));
            };
            // With what the link shows at once there is memory for all of it.
            if piece_bytes < 6000 {
                check(&mut pair);
            }
        }
    }
}

#[test]
fn a_reason_that_finds_no_memory_is_replaced() {
    let mut pair = pair(Features::NONE);
    narrow(&mut pair, 100, 1000);
    pair.piece_bytes = 200;
    pair.call(receive("k"));
    pair.carry_requests();
    let id = pair.request().id;
    let text = "x".repeat(3000);
    (pair.server.end).answer(id, Err(Status::new(Code::Aborted, text)));
    pair.carry_responses();
    let status = pair.finished().result.unwrap_err();
    assert_eq!(status.code, Code::Aborted);
    assert!(
        status
            .message
            .starts_with("the peer's reason could not be kept")
    );
    pair.round_trip(receive("k"), tensors([bytes_tensor(10, 1)]));
}

fn arena() -> Arena {
    Arena::new(ArenaOptions::default().with(|options| options.capacity_bytes = 1 << 20))
        .expect("address space")
}

#[test]
fn a_frame_that_announces_more_than_its_share_fails_before_it_has_come() {
    let limits = ConnectionLimits::default().with(|limits| limits.arena_bytes = 10_000);
    for features in [Features::NONE, Features::HEADS_FIRST] {
        let mut pair = pair_within(limits, features);
        pair.client.landings.arena = Some(arena());
        pair.server.landings.arena = Some(arena());
        let each = |seed| bytes_tensor(4000, seed);
        let three = || vec![("x", each(1)), ("y", each(2)), ("z", each(3))];
        fails_at_the_server(&mut pair, graph("f", three(), &["a"]));
        let answer = tensors([each(1), each(2), each(3)]).unwrap();
        fails_at_the_client(&mut pair, fuse(&["a", "b", "c"]), answer);
        pair.round_trip(
            graph("f", vec![("x", each(1)), ("y", each(2))], &[]),
            Ok(Response::Fetched(NamedTensors::new())),
        );
        // What does not land in the arena takes nothing of it.
        pair.server.landings.arena = None;
        pair.round_trip(
            graph("f", three(), &[]),
            Ok(Response::Fetched(NamedTensors::new())),
        );
    }
}

#[test]
fn a_frame_beyond_its_share_comes_where_there_is_memory_beyond_it() {
    let limits = ConnectionLimits::default().with(|limits| {
        limits.arena_bytes = 10_000;
        limits.goes_beyond = true;
    });
    for (features, shares) in [
        (Features::NONE, false),
        (Features::HEADS_FIRST, false),
        (Features::HEADS_FIRST, true),
    ] {
        let mut pair = pair_within(limits, features);
        pair.client.landings.arena = Some(arena());
        pair.client.landings.shares = shares;
        let sent = (0..3).map(|seed| bytes_tensor(4000, seed));
        pair.round_trip(fuse(&["a", "b", "c"]), tensors(sent.collect::<Vec<_>>()));
        let small = (0..200).map(|seed| bytes_tensor(100, seed));
        let keys: Vec<String> = (0..200).map(|key| key.to_string()).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        pair.round_trip(fuse(&keys), tensors(small.collect::<Vec<_>>()));
    }
}

#[test]
fn an_answer_beside_one_in_chunks_beyond_the_share_comes_too() {
    let limits = limits().with(|limits| {
        limits.arena_bytes = 10_000;
        limits.goes_beyond = true;
    });
    for shares in [false, true] {
        let mut pair = pair_within(limits, Features::CHUNKS | Features::HEADS_FIRST);
        pair.client.landings.arena = Some(arena());
        pair.client.landings.shares = shares;
        let long = pair.call(receive("long"));
        let short = pair.call(fuse(&["a", "b"]));
        pair.carry_requests();
        let (of_long, of_short) = (pair.request().id, pair.request().id);
        let whole = [bytes_tensor(30_000, 1)];
        assert!(pair.server.end.answer(of_long, tensors(whole.clone())));
        let first = pair.server.drain_one().expect("a chunk");
        pair.client.offer(&first);
        let two = [bytes_tensor(500, 2), bytes_tensor(600, 3)];
        assert!(pair.server.end.answer(of_short, tensors(two.clone())));
        pair.carry_responses();
        let mut finished = [pair.finished(), pair.finished()];
        finished.sort_by_key(|finished| finished.call != long);
        assert_eq!(finished[0].result, tensors(whole));
        assert_eq!(finished[1].call, short);
        assert_eq!(finished[1].result, tensors(two));
    }
}

#[test]
fn a_frame_between_chunks_has_what_the_frame_in_chunks_leaves() {
    let limits = limits().with(|limits| limits.arena_bytes = 10_000);
    let mut pair = pair_within(limits, Features::CHUNKS);
    pair.server.landings.arena = Some(arena());
    pair.call(graph("long", vec![("x", bytes_tensor(9000, 1))], &[]));
    let first = pair.client.drain_one().expect("a chunk");
    pair.server.offer(&first);
    pair.call(graph("short", vec![("x", bytes_tensor(1500, 1))], &[]));
    pair.carry_requests();
    let incoming = pair.request();
    let Request::StarRunGraph(call) = incoming.request else {
        panic!("a graph call");
    };
    assert_eq!(&call.graph_handle[..], "long");
    assert_eq!(pair.server.end.poll_request(), None);
    pair.carry_responses();
    let status = pair.finished().result.unwrap_err();
    assert_eq!(status.code, Code::ResourceExhausted);
    assert!(
        status.message.contains("10500 bytes, allowed are 10000"),
        "{status}"
    );
}

#[test]
fn a_connection_knows_whether_a_frame_has_begun() {
    let mut pair = pair(Features::CHUNKS);
    let frames = pair.server.end.frames();
    assert!(!pair.server.end.is_within_frame());
    pair.call(message(Method::RegisterGraph, &[7; 5000]));
    while let Some(chunk) = pair.client.drain_one() {
        for piece in chunk.chunks(700) {
            pair.server.offer(piece);
            assert_eq!(pair.server.end.frames(), frames + 1);
        }
        let is_whole = pair.server.end.has_requests();
        assert_eq!(pair.server.end.is_within_frame(), !is_whole);
    }
    assert!(!pair.server.end.is_within_frame());
}
