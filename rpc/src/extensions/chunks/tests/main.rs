//! Long frames in chunks, between two connections without a link.

use grpcxx_rpc::wire::{CHUNK_METHOD, ChunkHeader, HEADER_BYTES, RequestHeader, ResponseHeader};
use grpcxx_rpc::{
    CallId, CallOptions, ChunkError, ClientConnection, Code, ConnectionLimits, Features, Finished,
    Method, PeerViolation, Response, ServerConnection, Status,
};
use grpcxx_transport::{Outcome, Time};
use proptest::prelude::*;

use crate::support::driver::frame_bytes;
use crate::support::make::{bytes_tensor, floats, fuse, graph, message, named, receive};
use crate::support::{Pair, Port, tensors};

const CHUNK_BYTES: usize = 1500;

fn limits() -> ConnectionLimits {
    ConnectionLimits::default().with(|limits| {
        limits.whole_frame_bytes = 2000;
        limits.chunk_bytes = CHUNK_BYTES;
    })
}

/// Two ends that have announced everything.
fn pair() -> Pair {
    pair_with(limits(), Features::ALL)
}

fn pair_with(limits: ConnectionLimits, features: Features) -> Pair {
    let mut pair = Pair::with_limits(limits, features, features);
    pair.answer_announcement();
    pair
}

/// The chunks among frames of star, by tag and length.
fn chunks_of(mut bytes: &[u8]) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    while let Some(head) = bytes.first_chunk::<HEADER_BYTES>() {
        let payload_bytes = match ChunkHeader::find(head) {
            Some(chunk) => {
                found.push((chunk.tag, chunk.payload_bytes));
                chunk.payload_bytes
            }
            None => ResponseHeader::decode(head).unwrap().payload_bytes,
        };
        bytes = &bytes[HEADER_BYTES + payload_bytes as usize..];
    }
    assert!(bytes.is_empty());
    found
}

#[test]
fn all_kinds_of_calls_cross_in_chunks_in_any_pieces() {
    for piece_bytes in [1, 31, 32, 37, 100, 1499, 1500, 1501, 4096, usize::MAX] {
        let mut pair = pair();
        pair.piece_bytes = piece_bytes;
        let large = |seed| bytes_tensor(9000, seed);
        for _ in 0..2 {
            pair.round_trip(
                message(Method::RegisterGraph, &[7; 3000]),
                Ok(Response::Message(vec![8; 5000].into())),
            );
            pair.round_trip(receive("k"), tensors([large(1)]));
            pair.round_trip(
                fuse(&["a", "b", "c", "d"]),
                tensors([large(1), floats(&[3.0]), large(2), bytes_tensor(0, 0)]),
            );
            pair.round_trip(
                graph("f", vec![("x", large(2)), ("y", large(3))], &["b", "a"]),
                Ok(Response::Fetched(named(vec![
                    ("b", large(3)),
                    ("a", large(4)),
                ]))),
            );
            pair.round_trip(receive("k"), Err(Status::new(Code::Aborted, "aborted")));
        }
    }
}

#[test]
fn a_long_frame_is_cut_where_payload_is() {
    let mut pair = pair_with(limits(), Features::CHUNKS);
    let call = pair.call(fuse(&["a", "b"]));
    pair.carry_requests();
    let id = pair.request().id;
    let answer = tensors([bytes_tensor(3000, 0), bytes_tensor(1100, 1)]);
    assert!(pair.server.end.answer(id, answer));
    let (record, header) = (37, HEADER_BYTES as u64);
    let chunks = chunks_of(&pair.server.drain());
    let lengths = [header + record + 1500, 1500 + record, 1100];
    assert_eq!(chunks, lengths.map(|len| (call.tag(), len)));
}

#[test]
fn frames_that_are_not_long_stay_whole() {
    let mut pair = pair();
    pair.call(receive("k"));
    pair.carry_requests();
    let id = pair.request().id;
    let longest = 2000 - HEADER_BYTES - 37;
    assert!(
        pair.server
            .end
            .answer(id, tensors([bytes_tensor(longest, 0)]))
    );
    assert_eq!(chunks_of(&pair.server.drain()), []);
}

/// To nobody who has not announced that it takes them, not even if it takes long frames.
#[test]
fn only_who_takes_chunks_gets_any() {
    let without = Features::ALL.without(Features::CHUNKS);
    for (client, server) in [
        (without, Features::ALL),
        (Features::ALL, without),
        (Features::NONE, Features::ALL),
    ] {
        let mut pair = Pair::with_limits(limits(), client, server);
        if !client.is_empty() {
            pair.carry_requests();
            let status = pair.request();
            let body = Ok(Response::Message(vec![].into()));
            pair.server.end.answer(status.id, body);
            pair.carry_responses();
        }
        pair.call(graph("f", vec![("x", bytes_tensor(9000, 1))], &["y"]));
        let request = pair.client.drain();
        assert_eq!(
            RequestHeader::decode(request.first_chunk().unwrap())
                .unwrap()
                .method,
            7
        );
        pair.server.offer(&request);
        let id = pair.request().id;
        let answer = Response::Fetched(named(vec![("y", bytes_tensor(9000, 2))]));
        assert!(pair.server.end.answer(id, Ok(answer.clone())));
        let response = pair.server.drain();
        assert_eq!(chunks_of(&response), []);
        pair.client.offer(&response);
        assert_eq!(pair.finished().result, Ok(answer));
    }
}

/// A client that has announced itself may be known to the server before it knows of the server.
#[test]
fn a_client_takes_chunks_before_it_has_read_the_announcement() {
    let mut pair = Pair::with_limits(limits(), Features::ALL, Features::ALL);
    let call = pair.call(receive("k"));
    pair.carry_requests();
    let (_status, incoming) = (pair.request(), pair.request());
    let answer = tensors([bytes_tensor(9000, 1)]);
    assert!(pair.server.end.answer(incoming.id, answer.clone()));
    pair.carry_responses();
    let Finished {
        call: found,
        result,
        ..
    } = pair.finished();
    assert_eq!((found, result), (call, answer));
}

#[test]
fn a_small_answer_passes_a_long_one() {
    let mut pair = pair();
    let long = pair.call(receive("long"));
    let other = pair.call(receive("other"));
    let small = pair.call(receive("small"));
    pair.carry_requests();
    let ids = [(); 3].map(|()| pair.request().id);
    assert!(
        pair.server
            .end
            .answer(ids[0], tensors([bytes_tensor(4000, 1)]))
    );
    assert!(
        pair.server
            .end
            .answer(ids[1], tensors([bytes_tensor(4000, 2)]))
    );
    let first = pair.server.end.poll_frame().unwrap();
    assert!(
        pair.server.end.poll_frame().is_none(),
        "one chunk is at the link"
    );
    assert!(pair.server.end.answer(ids[2], tensors([floats(&[1.0])])));
    let second = pair.server.end.poll_frame().unwrap();
    assert!(pair.server.end.poll_frame().is_none());
    for frame in [first, second] {
        pair.client.offer(&frame_bytes(&frame));
        pair.server.end.handle_sent(frame, Outcome::Done);
    }
    let finished = pair.finished();
    assert_eq!(
        (finished.call, finished.result),
        (small, tensors([floats(&[1.0])]))
    );
    pair.carry_responses();
    for (call, seed) in [(long, 1), (other, 2)] {
        let finished = pair.finished();
        assert_eq!(finished.call, call);
        assert_eq!(finished.result, tensors([bytes_tensor(4000, seed)]));
    }
    assert_eq!(pair.client.violation, None);
}

#[test]
fn a_small_request_passes_a_long_one() {
    let mut pair = pair();
    let feeds = || vec![("x", bytes_tensor(4000, 1))];
    pair.call(graph("long", feeds(), &[]));
    pair.call(receive("small"));
    let small = pair.client.end.poll_frame().unwrap();
    let chunk = pair.client.end.poll_frame().unwrap();
    assert!(pair.client.end.poll_frame().is_none());
    pair.call(receive("smaller"));
    let smaller = pair.client.end.poll_frame().unwrap();
    for frame in [small, chunk, smaller] {
        pair.server.offer(&frame_bytes(&frame));
        pair.client.end.handle_sent(frame, Outcome::Done);
    }
    assert_eq!(pair.request().request, receive("small"));
    assert_eq!(pair.request().request, receive("smaller"));
    pair.carry_requests();
    assert_eq!(pair.request().request, graph("long", feeds(), &[]));
}

/// However many small frames there are, a long one goes on.
#[test]
fn small_frames_do_not_hold_up_a_long_one_for_ever() {
    let mut pair = pair();
    pair.call(graph("long", vec![("x", bytes_tensor(4000, 1))], &[]));
    let mut sent = 0;
    while chunks_of(&pair.client.drain_one().unwrap()).is_empty() {
        for _ in 0..3 {
            pair.call(receive("small"));
        }
        sent += 1;
        assert!(sent < 1000);
    }
}

#[test]
fn a_refused_chunk_is_the_next_frame_again() {
    let mut pair = pair();
    let limits_of_chunk = 1;
    let call = pair.call(graph("long", vec![("x", bytes_tensor(4000, 1))], &[]));
    for _ in 0..=limits_of_chunk {
        let frame = pair.client.end.poll_frame().unwrap();
        pair.client.end.unpoll_frame(frame);
    }
    let chunks = chunks_of_requests(&pair.client.drain());
    assert_eq!(chunks.len(), 3);
    assert!(chunks.iter().all(|&(tag, _)| tag == call.tag()));
}

/// As [`chunks_of`], of requests.
fn chunks_of_requests(bytes: &[u8]) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut rest = bytes;
    while let Some(head) = rest.first_chunk::<HEADER_BYTES>() {
        let header = RequestHeader::decode(head).unwrap();
        if header.method == CHUNK_METHOD {
            found.push((header.tag, header.payload_bytes));
        }
        rest = &rest[HEADER_BYTES + header.payload_bytes as usize..];
    }
    found
}

/// The tensors of an answer go back whichever of its chunks is the first that is lost, and the
/// client has none of it.
#[test]
fn an_answer_is_lost_as_a_whole() {
    for sent in 0..3 {
        for is_at_link in [false, true] {
            let mut pair = pair();
            pair.call(receive("k"));
            pair.carry_requests();
            let incoming = pair.request();
            assert!(
                pair.server
                    .end
                    .answer(incoming.id, tensors([bytes_tensor(4000, 1)]))
            );
            for _ in 0..sent {
                let bytes = pair.server.drain_one().unwrap();
                pair.client.offer(&bytes);
            }
            if is_at_link {
                let frame = pair.server.end.poll_frame().unwrap();
                pair.server.end.handle_sent(frame, Outcome::Lost);
            }
            assert_eq!(pair.client.end.poll_finished(), None);
            let gone = Status::new(Code::Unavailable, "gone");
            pair.server.close(&gone);
            pair.client.close(&gone);
            let back = pair
                .server
                .end
                .poll_undelivered()
                .expect("the tensor goes back");
            assert_eq!(back.id, incoming.id);
            assert_eq!(back.tensors[0], bytes_tensor(4000, 1));
            assert_eq!(pair.server.end.poll_undelivered(), None);
            assert_eq!(pair.finished().result, Err(gone));
            assert_eq!(pair.client.end.poll_finished(), None);
        }
    }
}

#[test]
fn an_answer_that_has_left_with_its_last_chunk_is_not_given_back() {
    let mut pair = pair();
    pair.call(receive("k"));
    pair.carry_requests();
    let id = pair.request().id;
    assert!(pair.server.end.answer(id, tensors([bytes_tensor(4000, 1)])));
    pair.carry_responses();
    assert!(pair.finished().result.is_ok());
    pair.server.close(&Status::new(Code::Unavailable, "gone"));
    assert_eq!(pair.server.end.poll_undelivered(), None);
}

#[test]
fn a_call_that_ends_amid_its_chunks_ends_once() {
    for is_deadline in [false, true] {
        let mut pair = pair();
        let options = CallOptions {
            token: 5,
            deadline: is_deadline.then(|| at(10)),
            ..CallOptions::default()
        };
        let call = pair.call_with(receive("k"), options);
        pair.carry_requests();
        let id = pair.request().id;
        assert!(pair.server.end.answer(id, tensors([bytes_tensor(4000, 1)])));
        let chunk = pair.server.drain_one().unwrap();
        pair.client.offer(&chunk);
        let code = if is_deadline {
            pair.client.end.handle_timeout(at(10));
            Code::DeadlineExceeded
        } else {
            assert!(pair.client.end.cancel(call));
            Code::Cancelled
        };
        let finished = pair.finished();
        assert_eq!((finished.call, finished.token), (call, 5));
        assert_eq!(finished.result.unwrap_err().code, code);
        pair.carry_requests();
        pair.carry_responses();
        assert_eq!(pair.client.end.poll_finished(), None);
        pair.round_trip(receive("k"), tensors([bytes_tensor(4000, 2)]));
    }
}

/// Else a connection that waits for the next frame would pass for one that is too slow.
#[test]
fn no_frame_is_under_way_behind_the_last_chunk() {
    for piece_bytes in [1, 7, 37, 1499, 1500, usize::MAX] {
        for is_given_up in [false, true] {
            let mut pair = pair();
            pair.piece_bytes = piece_bytes;
            let call = pair.call(fuse(&["a", "b", "c"]));
            pair.carry_requests();
            let id = pair.request().id;
            let three = [1, 2, 3].map(|seed| bytes_tensor(3000, seed));
            assert!(pair.server.end.answer(id, tensors(three)));
            let chunk = pair.server.drain_one().unwrap();
            pair.client.offer(&chunk);
            assert!(pair.client.end.is_within_frame());
            if is_given_up {
                assert!(pair.client.end.cancel(call));
                pair.carry_requests();
            }
            pair.carry_responses();
            assert_eq!(pair.finished().result.is_err(), is_given_up);
            assert!(
                !pair.client.end.is_within_frame(),
                "{piece_bytes} {is_given_up}"
            );
        }
    }
}

#[test]
fn a_request_that_is_given_up_amid_its_chunks_is_never_seen() {
    let mut pair = pair();
    let call = pair.call(graph("f", vec![("x", bytes_tensor(4000, 1))], &["y"]));
    let chunk = pair.client.drain_one().unwrap();
    pair.server.offer(&chunk);
    assert!(pair.client.end.cancel(call));
    assert_eq!(pair.finished().result.unwrap_err().code, Code::Cancelled);
    pair.carry_requests();
    assert_eq!(pair.server.end.poll_request(), None);
    pair.carry_responses();
    assert_eq!(pair.client.end.poll_finished(), None);
    pair.round_trip(receive("k"), tensors([bytes_tensor(4000, 2)]));
}

/// A call that was given up before its first chunk sends nothing.
#[test]
fn a_long_request_that_has_not_begun_is_dropped() {
    let mut pair = pair();
    let feeds = |seed| vec![("x", bytes_tensor(4000, seed))];
    let first = pair.call(graph("f", feeds(1), &[]));
    let chunk = pair.client.drain_one().unwrap();
    let second = pair.call(graph("g", feeds(2), &[]));
    assert!(pair.client.end.poll_frame().is_some());
    assert!(pair.client.end.poll_frame().is_none());
    assert!(pair.client.end.cancel(second));
    assert_eq!(chunks_of_requests(&chunk)[0].0, first.tag());
    let gone = Status::new(Code::Unavailable, "gone");
    assert_eq!(pair.finished().call, second);
    pair.client.end.handle_closed(&gone);
    assert_eq!(pair.finished().call, first);
    assert_eq!(pair.client.end.poll_finished(), None);
}

/// Memory that is refused in the middle of a frame fails the call, and what follows it is dropped
/// chunk by chunk.
#[test]
fn a_frame_without_memory_is_dropped_in_all_its_chunks() {
    let mut pair = pair();
    pair.client.landings.piece_bytes_max = 8000;
    let large = [
        bytes_tensor(3000, 1),
        bytes_tensor(9000, 2),
        bytes_tensor(3000, 3),
    ];
    for _ in 0..2 {
        pair.call(fuse(&["a", "b", "c"]));
        pair.carry_requests();
        let id = pair.request().id;
        assert!(pair.server.end.answer(id, tensors(large.clone())));
        pair.carry_responses();
        let failed = pair.finished().result.unwrap_err();
        assert_eq!(failed.code, Code::ResourceExhausted);
    }
    pair.round_trip(receive("k"), tensors([bytes_tensor(4000, 2)]));
}

/// The request in chunks has a place of its own: others go on to be read, for one of them may wait
/// for it.
#[test]
fn a_server_at_its_limit_takes_the_rest_of_a_request_in_chunks() {
    let limits_of_one = limits().with(|limits| limits.outstanding_calls = 1);
    let mut pair = pair_with(limits_of_one, Features::ALL);
    let mut other = ClientConnection::new(limits(), Features::NONE);
    let long = graph("long", vec![("x", bytes_tensor(4000, 1))], &[]);
    pair.call(long.clone());
    let chunks = [(); 3].map(|()| pair.client.drain_one().unwrap());
    let now = Time::ZERO;
    other
        .call(now, receive("waits"), CallOptions::default())
        .unwrap();
    let mut waits = frame_bytes(&other.poll_frame().unwrap());
    waits[8] = 99;
    pair.server.offer(&chunks[0]);
    pair.server.offer(&waits);
    assert_eq!(pair.request().request, receive("waits"));
    // One request waits, and that is the limit.
    pair.server.offer(&chunks[1]);
    assert_eq!(pair.server.end.poll_request(), None);
    let waiting: Vec<_> = pair.server.end.outstanding_requests().collect();
    assert!(
        pair.server
            .end
            .answer(waiting[0], tensors([floats(&[1.0])]))
    );
    pair.server.drain();
    assert!(pair.server.resume());
    pair.server.offer(&chunks[2]);

    assert_eq!(pair.server.violation, None);
    assert_eq!(pair.request().request, long);
}

fn at(ms: u64) -> Time {
    Time::ZERO + std::time::Duration::from_millis(ms)
}

/// A client that waits for tensors, and a frame for it in parts.
fn waiting_client() -> (Port<ClientConnection>, CallId, Vec<u8>) {
    let mut pair = pair();
    let call = pair.call(receive("k"));
    pair.carry_requests();
    let id = pair.request().id;
    assert!(pair.server.end.answer(id, tensors([bytes_tensor(1900, 1)])));
    let frame = pair.server.drain();
    assert_eq!(chunks_of(&frame), []);
    (pair.client, call, frame)
}

fn chunk(tag: u64, bytes: &[u8]) -> Vec<u8> {
    let header = ChunkHeader {
        tag,
        payload_bytes: bytes.len() as u64,
    };
    [&header.encode_of_response(), bytes].concat()
}

#[test]
fn garbage_in_chunks_is_named() {
    let (_, call, frame) = waiting_client();
    let tag = call.tag();
    let cases: [(Vec<Vec<u8>>, ChunkError, &str); 8] = [
        (
            vec![chunk(tag, &[])],
            ChunkError::Empty,
            "chunk header: 0 bytes, allowed are chunks with bytes",
        ),
        (
            vec![chunk(tag, &frame[..100]), chunk(3, &frame[100..])],
            ChunkError::Tag {
                found: 3,
                allowed: tag,
            },
            "chunk header: tag 0x0000000000000003, allowed is 0x0000000200000000, whose frame is \
             not complete",
        ),
        (
            vec![chunk(3, &frame)],
            ChunkError::FrameTag {
                found: tag,
                allowed: 3,
            },
            "a frame in chunks with tag 0x0000000000000003 has the tag 0x0000000200000000, allowed \
             is the same",
        ),
        (
            vec![chunk(tag, &chunk(tag, &frame))],
            ChunkError::Nested,
            "the frame in a chunk begins as a chunk does, allowed are frames of star",
        ),
        (
            vec![
                chunk(tag, &frame[..100]),
                chunk(tag, &[&frame[100..], b"more"].concat()),
            ],
            ChunkError::Beyond { found_bytes: 4 },
            "a chunk has 4 bytes behind the end of its frame, allowed are 0",
        ),
        (
            // A part that came before.
            vec![chunk(tag, &frame[..100]), chunk(tag, &frame[31..])],
            ChunkError::Beyond { found_bytes: 69 },
            "a chunk has 69 bytes behind the end of its frame, allowed are 0",
        ),
        (
            vec![chunk(tag, &frame[..31])],
            ChunkError::CutHead {
                found_bytes: 31,
                wanted_bytes: 32,
            },
            "a chunk ends 31 bytes into a head of 32, allowed is an end in payload",
        ),
        (
            vec![chunk(tag, &frame[..60])],
            ChunkError::CutHead {
                found_bytes: 28,
                wanted_bytes: 37,
            },
            "a chunk ends 28 bytes into a head of 37, allowed is an end in payload",
        ),
    ];
    for (pieces, error, text) in cases {
        for step in [1, 33, usize::MAX] {
            let (mut client, call, _) = waiting_client();
            let all = pieces.concat();
            for piece in all.chunks(step) {
                client.offer(piece);
            }
            assert_eq!(
                client.violation,
                Some(PeerViolation::Chunk(error)),
                "in steps of {step}"
            );
            assert_eq!(error.to_string(), text);
            let gone = Status::new(Code::Unavailable, "gone");
            client.close(&gone);
            assert_eq!(client.end.poll_finished().unwrap().call, call);
            assert_eq!(client.end.poll_finished(), None);
        }
    }
}

/// Before anything is asked for: a chunk longer than a frame may be, a tensor longer than a frame
/// may be.
#[test]
fn limits_are_checked_before_memory_is_taken() {
    let limits = limits().with(|limits| limits.frame_bytes = 1000);
    let mut client = Port::new(ClientConnection::new(limits, Features::ALL));
    let call = client
        .end
        .call(Time::ZERO, receive("k"), CallOptions::default())
        .unwrap();
    client.drain();
    let header = ChunkHeader {
        tag: call.tag(),
        payload_bytes: 1001,
    };
    let violation = client.offer_violation(&header.encode_of_response());
    assert_eq!(
        violation.to_string(),
        "a chunk is 1001 bytes, allowed are 0 to 1000"
    );
    assert_eq!(client.landings.total_bytes, 0);

    let (_, _, frame) = waiting_client();
    let mut client = Port::new(ClientConnection::new(limits, Features::ALL));
    client
        .end
        .call(Time::ZERO, receive("a"), CallOptions::default())
        .unwrap();
    client.drain();
    let mut frame = frame[..900].to_vec();
    frame[8..16].copy_from_slice(&(1u64 | 1 << 32).to_le_bytes());
    let violation = client.offer_violation(&chunk(1 | 1 << 32, &frame));
    assert_eq!(
        violation.to_string(),
        "a frame with its tensors is 1969 bytes, allowed are 0 to 1000"
    );
    assert_eq!(client.landings.total_bytes, 0);
}

/// A chunk that nobody has announced is what it would be without the extension.
#[test]
fn who_has_not_announced_chunks_takes_none() {
    let without = Features::ALL.without(Features::CHUNKS);
    let mut server = Port::new(ServerConnection::new(limits(), without));
    let header = ChunkHeader {
        tag: 1,
        payload_bytes: 40,
    };
    server.offer(&[&header.encode_of_request()[..], &[0; 40]].concat());
    assert_eq!(server.violation, None);
    let answer = server.drain();
    let header = ResponseHeader::decode(answer.first_chunk().unwrap()).unwrap();
    assert_eq!((header.tag, header.status), (1, Code::Unimplemented as i32));

    let mut client = Port::new(ClientConnection::new(limits(), without));
    let call = client.end.call(
        Time::ZERO,
        message(Method::RunGraph, b""),
        CallOptions::default(),
    );
    client.drain();
    let tag = call.unwrap().tag();
    client.offer(&chunk(tag, b"body"));
    assert_eq!(
        client.end.poll_finished().unwrap().result,
        Ok(Response::Message(b"body".to_vec().into()))
    );
}

/// What a connection would put on a link, and how its long frames are cut.
#[derive(Clone, Debug)]
struct Traffic {
    sizes: Vec<usize>,
    chunk_bytes: usize,
    piece_bytes: usize,
    /// Frames between two steps of the link.
    burst: usize,
}

fn traffic() -> impl Strategy<Value = Traffic> {
    (
        proptest::collection::vec(prop_oneof![0usize..1200, 1200usize..12_000], 1..8),
        1usize..4000,
        prop_oneof![1usize..80, 80usize..9000],
        1usize..4,
    )
        .prop_map(|(sizes, chunk_bytes, piece_bytes, burst)| Traffic {
            sizes,
            chunk_bytes,
            piece_bytes,
            burst,
        })
}

/// Answers for all calls, with the frames that a link would carry.
fn answered(traffic: &Traffic) -> (Pair, Vec<(CallId, usize)>, Vec<u8>) {
    let limits = limits().with(|limits| limits.chunk_bytes = traffic.chunk_bytes);
    let mut pair = pair_with(limits, Features::ALL);
    let calls = traffic
        .sizes
        .iter()
        .map(|&size| (pair.call(receive("k")), size));
    let calls: Vec<_> = calls.collect();
    pair.carry_requests();
    let mut wire = Vec::new();
    let mut at_link = Vec::new();
    for (index, &(_, size)) in calls.iter().enumerate() {
        let id = pair.request().id;
        assert!(
            pair.server
                .end
                .answer(id, tensors([bytes_tensor(size, size as u8)]))
        );
        if index % traffic.burst == 0 {
            at_link.extend(pair.server.end.poll_frame());
            for frame in at_link.drain(..) {
                wire.extend(frame_bytes(&frame));
                pair.server.end.handle_sent(frame, Outcome::Done);
            }
        }
    }
    wire.extend(pair.server.drain());
    (pair, calls, wire)
}

proptest! {
    #[test]
    fn whatever_is_cut_arrives_whole(traffic in traffic()) {
        let (mut pair, calls, wire) = answered(&traffic);
        let tensor_bytes = |pair: &Pair| {
            pair.client.landings.total_bytes - pair.client.landings.message_bytes
        };
        let before = tensor_bytes(&pair);
        for piece in wire.chunks(traffic.piece_bytes) {
            pair.client.offer(piece);
        }
        prop_assert_eq!(&pair.client.violation, &None);
        let mut finished: Vec<_> = std::iter::from_fn(|| pair.client.end.poll_finished()).collect();
        finished.sort_by_key(|finished| finished.call);
        prop_assert_eq!(finished.len(), calls.len());
        for (finished, (call, size)) in finished.into_iter().zip(calls) {
            prop_assert_eq!(finished.call, call);
            prop_assert_eq!(finished.result, tensors([bytes_tensor(size, size as u8)]));
        }
        let landed: usize = traffic.sizes.iter().sum();
        prop_assert!(tensor_bytes(&pair) - before <= landed, "each tensor takes memory once");
    }

    /// Heads of frames and chunks with other bytes, and parts that are missing or come twice.
    #[test]
    fn damaged_chunks_end_each_call_once(
        traffic in traffic(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        swap in proptest::option::of((any::<prop::sample::Index>(), any::<prop::sample::Index>())),
    ) {
        let (mut pair, calls, mut wire) = answered(&traffic);
        let starts = frame_starts(&wire);
        for (at, byte) in changes {
            let start = starts[at.index(starts.len())];
            let place = start + usize::from(byte) % HEADER_BYTES;
            wire[place] = wire[place].wrapping_add(byte | 1);
        }
        if let Some((from, to)) = swap {
            let from = starts[from.index(starts.len())];
            let to = starts[to.index(starts.len())];
            let part = wire[from..].to_vec();
            wire.splice(to.., part);
        }
        for piece in wire.chunks(traffic.piece_bytes) {
            pair.client.offer(piece);
        }
        pair.client.close(&Status::new(Code::Unavailable, "gone"));
        let mut finished: Vec<_> = std::iter::from_fn(|| pair.client.end.poll_finished())
            .map(|finished| finished.call)
            .collect();
        finished.sort_unstable();
        let calls: Vec<_> = calls.into_iter().map(|(call, _)| call).collect();
        prop_assert_eq!(finished, calls);
    }

    /// A frame that somebody else cuts, at any place where that is allowed.
    #[test]
    fn any_cut_in_payload_is_taken(
        mut cuts in proptest::collection::vec(69usize..1969, 0..6),
        step in 1usize..300,
    ) {
        let (mut client, call, frame) = waiting_client();
        cuts.extend([0, frame.len()]);
        cuts.sort_unstable();
        cuts.dedup();
        let wire: Vec<u8> = cuts
            .windows(2)
            .flat_map(|cut| chunk(call.tag(), &frame[cut[0]..cut[1]]))
            .collect();
        for piece in wire.chunks(step) {
            client.offer(piece);
        }
        prop_assert_eq!(&client.violation, &None);
        let finished = client.end.poll_finished().unwrap();
        prop_assert_eq!(finished.result, tensors([bytes_tensor(1900, 1)]));
    }
}

fn frame_starts(wire: &[u8]) -> Vec<usize> {
    let (mut at, mut starts) = (0, Vec::new());
    while let Some(head) = wire.get(at..).and_then(|rest| rest.first_chunk()) {
        starts.push(at);
        at += HEADER_BYTES + ResponseHeader::decode(head).unwrap().payload_bytes as usize;
    }
    starts
}
