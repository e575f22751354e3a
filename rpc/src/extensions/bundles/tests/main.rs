//! Small requests and answers that share a frame.

use grpcxx_rpc::wire::{HEADER_BYTES, RequestHeader, ResponseHeader};
use grpcxx_rpc::{
    CallOptions, Code, ConnectionLimits, Features, PeerViolation, Request, Response, Status, Tensor,
};
use grpcxx_transport::{Outcome, Time};
use proptest::prelude::*;

use crate::support::make::{self, floats, fuse, receive};
use crate::support::{Pair, tensors};

fn header(bytes: &[u8]) -> RequestHeader {
    RequestHeader::decode(bytes.first_chunk().unwrap()).unwrap()
}

fn answer_header(bytes: &[u8]) -> ResponseHeader {
    ResponseHeader::decode(bytes.first_chunk().unwrap()).unwrap()
}

/// Calls under way on a pair that knows bundles, with the requests as they arrived.
fn asked(keys: &[&str]) -> (Pair, Vec<grpcxx_rpc::Incoming>) {
    let mut pair = Pair::announced();
    for key in keys {
        pair.call(receive(key));
    }
    pair.carry_requests();
    let incoming = keys.iter().map(|_| pair.request()).collect();
    (pair, incoming)
}

#[test]
fn small_calls_share_a_frame_each_way() {
    let mut pair = Pair::announced();
    let key = "k".repeat(150);
    for round in 0..3 {
        let calls: Vec<_> = (0..20).map(|_| pair.call(receive(&key))).collect();
        let requests = pair.client.drain();
        assert_eq!(header(&requests).method, BUNDLE_METHOD);
        assert_eq!(
            header(&requests).payload_bytes,
            (requests.len() - HEADER_BYTES) as u64
        );
        let key_bytes = if round == 0 { 4 + key.len() } else { 0 };
        assert_eq!(requests.len(), HEADER_BYTES + 20 * 24 + key_bytes);
        pair.server.offer(&requests);
        for _ in &calls {
            let incoming = pair.request();
            assert_eq!(incoming.request, receive(&key));
            let answer = tensors([floats(&[1.0])]);
            assert!(pair.server.end.answer(incoming.id, answer));
        }
        let answers = pair.server.drain();
        assert_eq!(answer_header(&answers).tag, u64::MAX);
        assert_eq!(answers.len(), HEADER_BYTES + 37 + 20 * (8 + 1 + 4));
        pair.client.offer(&answers);
        for call in calls {
            let finished = pair.finished();
            assert_eq!(finished.call, call);
            assert_eq!(finished.result, tensors([floats(&[1.0])]));
        }
    }
    assert_eq!(pair.server.end.outstanding_requests().count(), 0);
}

/// The short way sends and allows the same as the long one.
#[test]
fn a_receive_is_a_call() {
    let limits = ConnectionLimits::default().with(|limits| limits.outstanding_calls = 3);
    let mut one = Pair::announced_with_limits(limits);
    let mut other = Pair::announced_with_limits(limits);
    let deadline = Some(Time::from_nanos(30_000_000));
    for (key, deadline) in [("k", None), ("k", deadline), ("l", None)] {
        let options = CallOptions {
            deadline,
            ..CallOptions::default()
        };
        assert!(other.client.end.takes_receives(&"k".into()));
        let now = other.client.now;
        let call = (other.client.end).receive(now, make::STEP_ID, &key.into(), options);
        assert_eq!(call, one.call_with(receive(key), options));
    }
    assert!(!other.client.end.takes_receives(&"k".into()));
    let requests = one.client.drain();
    assert_eq!(other.client.drain(), requests);
    other.server.offer(&requests);
    let incoming = other.request();
    let answer = tensors([floats(&[1.0])]);
    assert!(other.server.end.answer(incoming.id, answer));
    other.carry_responses();
    assert!(
        !other.client.end.takes_receives(&"k".into()),
        "an answer counts until it is taken"
    );
    other.finished();
    assert!(other.client.end.takes_receives(&"k".into()));
    let gone = Status::new(Code::Unavailable, "the link is gone");
    other.client.end.handle_closed(&gone);
    while other.client.end.poll_finished().is_some() {}
    assert!(!other.client.end.takes_receives(&"k".into()));
    assert!(!Pair::plain().client.end.takes_receives(&"k".into()));
}

/// Where memory is shared, what is kept of it is short.
#[test]
fn small_answers_share_memory_where_their_calls_allow_it() {
    let mut pair = Pair::announced();
    pair.client.landings.shares = true;
    let sent = [
        (64, true),
        (10, true),
        (64, false),
        (600, true),
        (0, true),
        (512, true),
        (1, true),
    ];
    for (token, &(_, shares_memory)) in sent.iter().enumerate() {
        let options = CallOptions {
            token: token as u64,
            shares_memory,
            ..CallOptions::default()
        };
        pair.call_with(receive("k"), options);
    }
    pair.carry_requests();
    for (len, _) in sent {
        let incoming = pair.request();
        let tensor = make::bytes_tensor(len, len as u8);
        (pair.server.end).answer(incoming.id, tensors([tensor]));
    }
    pair.carry_responses();
    let mut places = Vec::new();
    for (token, (len, _)) in sent.into_iter().enumerate() {
        let finished = pair.finished();
        assert_eq!(finished.token, token as u64);
        let Ok(Response::Tensors(tensors)) = finished.result else {
            panic!("one tensor was sent");
        };
        assert_eq!(tensors[0], make::bytes_tensor(len, len as u8));
        places.push(tensors);
    }
    let place = |index: usize| places[index][0].data.as_ptr().addr();
    assert_eq!(
        [place(1), place(5), place(6)].map(|at| at - place(0)),
        [64, 128, 640]
    );
    let blocks = &pair.client.landings.blocks;
    assert!(blocks.len() == 1 && blocks[0] <= 2048, "{blocks:?}");
}

#[test]
fn all_kinds_of_calls_cross_in_any_pieces() {
    for piece_bytes in [1, 3, 31, 33, 100, usize::MAX] {
        let mut pair = Pair::announced();
        pair.piece_bytes = piece_bytes;
        for _again in 0..2 {
            pair.round_trip(receive("k"), tensors([floats(&[1.0, 2.0])]));
            pair.round_trip(receive("k"), tensors([Tensor::dead()]));
            pair.round_trip(receive("big"), tensors([make::bytes_tensor(5000, 1)]));
            pair.round_trip(receive(&"long".repeat(200)), tensors([floats(&[3.0])]));
            pair.round_trip(receive(""), Err(Status::new(Code::Aborted, "step aborted")));
            pair.round_trip(
                fuse(&["a", "k", "a", "b"]),
                tensors([
                    make::bytes_tensor(9000, 1),
                    Tensor::dead(),
                    floats(&[3.0]),
                    floats(&[]),
                ]),
            );
        }
    }
}

#[test]
fn nothing_is_used_that_the_peer_has_not_announced() {
    let mut pair = Pair::new(Features::ALL, Features::ALL.without(Features::BUNDLES));
    pair.carry_requests();
    let status = pair.request();
    let body = Response::Message(vec![].into());
    pair.server.end.answer(status.id, Ok(body));
    pair.carry_responses();
    pair.call(receive("k"));
    let bytes = pair.client.drain();
    assert_eq!(header(&bytes).method, 10);
    pair.server.offer(&bytes);
    let incoming = pair.request();
    (pair.server.end).answer(incoming.id, tensors([floats(&[1.0])]));
    assert_eq!(answer_header(&pair.server.drain()).tag, header(&bytes).tag);
}

/// The server has read the client's announcement when it answers, and the client not yet the
/// server's.
#[test]
fn answers_may_come_before_the_announcement() {
    let mut pair = Pair::new(Features::ALL, Features::ALL);
    pair.call(receive("k"));
    pair.carry_requests();
    let status = pair.request();
    let incoming = pair.request();
    (pair.server.end).answer(incoming.id, tensors([floats(&[1.0])]));
    let answers = pair.server.drain();
    assert_eq!(answer_header(&answers).tag, u64::MAX);
    pair.client.offer(&answers);
    assert_eq!(pair.finished().result, tensors([floats(&[1.0])]));
    let body = Response::Message(vec![].into());
    pair.server.end.answer(status.id, Ok(body));
    pair.carry_responses();
    pair.round_trip(receive("k"), tensors([floats(&[2.0])]));
}

/// The server has read the client's announcement and uses what both know; the client could not read
/// the server's.
#[test]
fn answers_are_taken_from_a_peer_whose_announcement_got_lost() {
    let mut pair = Pair::new(Features::ALL, Features::ALL);
    pair.carry_requests();
    let status = pair.request();
    let body = Response::Message(vec![].into());
    pair.server.end.answer(status.id, Ok(body));
    let piece_bytes_max = std::mem::take(&mut pair.client.landings.piece_bytes_max);
    pair.carry_responses();
    pair.client.landings.piece_bytes_max = piece_bytes_max;
    assert_eq!(pair.client.end.peer_features(), Some(Features::NONE));

    pair.call(receive("k"));
    let request = pair.client.drain();
    assert_eq!(header(&request).method, 10, "nothing is known of the peer");
    pair.server.offer(&request);
    let incoming = pair.request();
    (pair.server.end).answer(incoming.id, tensors([floats(&[1.0])]));
    let answer = pair.server.drain();
    assert_eq!(answer_header(&answer).tag, u64::MAX);
    pair.client.offer(&answer);
    assert_eq!(pair.client.violation, None);
    assert_eq!(pair.finished().result, tensors([floats(&[1.0])]));
}

#[test]
fn long_bundles_are_cut() {
    let mut pair = Pair::announced();
    let calls = 3000;
    for _ in 0..calls {
        pair.call(receive("k"));
    }
    let mut frames = 0;
    while let Some(bytes) = pair.client.drain_one() {
        assert!(bytes.len() <= 16 << 10, "{}", bytes.len());
        frames += 1;
        pair.server.offer(&bytes);
    }
    assert_eq!(frames, 5);
    for _ in 0..calls {
        let id = pair.request().id;
        (pair.server.end).answer(id, tensors([make::bytes_tensor(1024, 1)]));
    }
    while let Some(bytes) = pair.server.drain_one() {
        assert!(bytes.len() <= 16 << 10, "{}", bytes.len());
        pair.client.offer(&bytes);
    }
    for _ in 0..calls {
        pair.finished().result.unwrap();
    }
}

#[test]
fn a_request_that_no_frame_could_share_has_one_of_its_own() {
    let mut pair = Pair::announced();
    for len in [32 << 10, (32 << 10) + 1, 64 << 10, 100_000] {
        let key = "k".repeat(len);
        assert_eq!(
            pair.client.end.takes_receives(&key.as_str().into()),
            len <= 32 << 10
        );
        pair.call(receive(&key));
        pair.call(receive("short"));
        pair.carry_requests();
        for asked in [&key[..], "short"] {
            let incoming = pair.request();
            assert_eq!(incoming.request, receive(asked));
            (pair.server.end).answer(incoming.id, tensors([make::bytes_tensor(8, 1)]));
        }
        pair.carry_responses();
        assert!(pair.finished().result.is_ok() && pair.finished().result.is_ok());
    }
}

/// checklist 18: a frame that did not leave as a whole was not delivered, since its receiver waits
/// for all of it.
#[test]
fn answers_of_a_lost_frame_are_given_back() {
    let (mut pair, incoming) = asked(&["a", "b", "c"]);
    for (value, incoming) in (0_u8..).zip(&incoming) {
        let answer = tensors([floats(&[f32::from(value)])]);
        assert!(pair.server.end.answer(incoming.id, answer));
    }
    let frame = pair.server.end.poll_frame().unwrap();
    let bytes = frame.segments().collect::<Vec<_>>().concat();
    pair.client.offer(&bytes[..bytes.len() - 1]);
    assert_eq!(pair.client.end.poll_finished(), None);
    let gone = Status::new(Code::Unavailable, "gone");
    pair.server.end.handle_sent(frame, Outcome::Lost);
    pair.server.close(&gone);
    let given_back: Vec<_> = std::iter::from_fn(|| pair.server.end.poll_undelivered())
        .map(|undelivered| (undelivered.request, undelivered.tensors.to_vec()))
        .collect();
    let expected: Vec<_> = (0_u8..)
        .zip(["a", "b", "c"])
        .map(|(value, key)| (receive(key), vec![floats(&[f32::from(value)])]))
        .collect();
    assert_eq!(given_back, expected);
    pair.client.close(&gone);
    for _ in 0..3 {
        assert_eq!(pair.finished().result, Err(gone.clone()));
    }
    assert_eq!(pair.client.end.poll_finished(), None);
}

#[test]
fn answers_that_wait_for_the_link_are_given_back() {
    let (mut pair, incoming) = asked(&["a", "b"]);
    (pair.server.end).answer(incoming[0].id, tensors([floats(&[1.0])]));
    pair.server.close(&Status::new(Code::Unavailable, "gone"));
    let undelivered = pair.server.end.poll_undelivered().unwrap();
    assert_eq!(undelivered.id, incoming[0].id);
    assert_eq!(pair.server.end.poll_undelivered(), None);
    assert_eq!(pair.server.end.poll_cancelled(), Some(incoming[1].id));
}

#[test]
fn each_answer_that_has_left_is_told() {
    let (mut pair, incoming) = asked(&["a", "b"]);
    for incoming in &incoming {
        (pair.server.end).answer(incoming.id, tensors([floats(&[1.0])]));
    }
    let frame = pair.server.end.poll_frame().unwrap();
    let mut told = Vec::new();
    (pair.server.end).handle_sent_with(frame, Outcome::Done, |id| told.push(id));
    assert_eq!(told, [incoming[0].id, incoming[1].id]);
}

/// What a number stands for is said even if nobody waits for the answer any more.
#[test]
fn a_call_that_ended_before_it_left_keeps_its_number() {
    let mut pair = Pair::announced();
    let given_up = pair.call(receive("new"));
    assert!(pair.client.end.cancel(given_up));
    assert_eq!(pair.finished().result.unwrap_err().code, Code::Cancelled);
    let call = pair.call(receive("new"));
    pair.carry_requests();
    let incoming = pair.request();
    assert_eq!(incoming.request, receive("new"));
    assert_eq!(pair.server.end.poll_request(), None);
    (pair.server.end).answer(incoming.id, tensors([floats(&[1.0])]));
    pair.carry_responses();
    assert_eq!(pair.finished().call, call);
    assert_eq!(pair.client.end.poll_finished(), None);
    assert_eq!(pair.client.end.outstanding_calls(), 0);
}

#[test]
fn an_answer_that_crosses_a_cancel_is_dropped() {
    let (mut pair, incoming) = asked(&["a", "b"]);
    for incoming in &incoming {
        (pair.server.end).answer(incoming.id, tensors([floats(&[1.0])]));
    }
    let call = pair.call(receive("c"));
    assert!(pair.client.end.cancel(call));
    let answers = pair.server.drain();
    pair.carry_requests();
    pair.client.offer(&answers);
    pair.carry_responses();
    let mut codes = Vec::new();
    while let Some(finished) = pair.client.end.poll_finished() {
        codes.push(finished.result.map_err(|status| status.code).is_ok());
    }
    assert_eq!(codes, [false, true, true]);
}

#[test]
fn deadlines_travel_with_requests() {
    let mut pair = Pair::announced();
    pair.server.now = Time::from_nanos(5_000_000);
    let deadline = Some(Time::from_nanos(30_000_000));
    for request in [receive("k"), fuse(&["k", "l"])] {
        pair.call_with(
            request,
            CallOptions {
                deadline,
                ..CallOptions::default()
            },
        );
        pair.carry_requests();
        assert_eq!(pair.request().deadline, Some(Time::from_nanos(35_000_000)));
    }
    pair.server.end.handle_timeout(Time::from_nanos(35_000_000));
    pair.carry_responses();
    for _ in 0..2 {
        let status = pair.finished().result.unwrap_err();
        assert_eq!(status.code, Code::DeadlineExceeded);
    }
}

/// A server that is full reads nothing behind the frame that made it so.
#[test]
fn a_bundle_is_taken_whole() {
    let limits = ConnectionLimits::default().with(|limits| limits.outstanding_calls = 4);
    let mut pair = Pair::announced();
    pair.server = Pair::announced_with_limits(limits).server;
    for _ in 0..6 {
        pair.call(receive("k"));
    }
    pair.carry_requests();
    let last = pair.call(receive("l"));
    pair.carry_requests();
    let first: Vec<_> = std::iter::from_fn(|| pair.server.end.poll_request()).collect();
    assert_eq!(first.len(), 6);
    for incoming in first {
        (pair.server.end).answer(incoming.id, tensors([floats(&[1.0])]));
    }
    pair.carry_responses();
    while pair.server.resume() {}
    let incoming = pair.request();
    assert_eq!(incoming.request, receive("l"));
    (pair.server.end).answer(incoming.id, tensors([floats(&[2.0])]));
    pair.carry_responses();
    let results: Vec<_> = std::iter::from_fn(|| pair.client.end.poll_finished()).collect();
    assert_eq!(results.len(), 7);
    assert_eq!(results[6].call, last);
}

#[test]
fn requests_that_cannot_be_are_violations() {
    let frame = |payload: &[u8]| {
        let header = RequestHeader {
            method: BUNDLE_METHOD,
            tag: 77,
            payload_bytes: payload.len() as u64,
            ..RequestHeader::default()
        };
        [&header.encode()[..], payload].concat()
    };
    let request = |tag: u64, key: &[u8]| {
        let mut bytes = tag.to_le_bytes().to_vec();
        bytes.extend([0; 12]);
        bytes.extend(key);
        bytes
    };
    let new_key = [0, 0, 0, 0x80, 1, 0, 0, 0, b'k'];
    let twice = [request(5, &new_key), request(5, &[0; 4])].concat();
    let unknown = request(5, &[9, 0, 0, 0]);
    let not_utf8 = [0, 0, 0, 0x80, 1, 0, 0, 0, 0xff];
    let gap = [1, 0, 0, 0x80, 1, 0, 0, 0, b'k'];
    let cases = [
        (frame(&twice), "belongs to an outstanding request"),
        (frame(&unknown), "key number 9, allowed are those below 0"),
        (
            frame(&unknown[..21]),
            "the number of a key needs 4 bytes, 1 are left",
        ),
        (frame(&request(5, &not_utf8)), "not UTF-8"),
        (
            frame(&request(5, &gap)),
            "key number 1, allowed are those below 1",
        ),
        (
            frame(&request(5, &new_key[..8])),
            "a key needs 1 bytes, 0 are left",
        ),
        (
            frame(&[0; (64 << 10) + 1]),
            "is 65537 bytes, allowed are 0 to 65536",
        ),
    ];
    for (bytes, text) in cases {
        for piece_bytes in [7, usize::MAX] {
            let mut pair = Pair::announced();
            for piece in bytes.chunks(piece_bytes) {
                pair.server.offer(piece);
            }
            let violation = pair.server.violation.expect("a violation").to_string();
            assert!(violation.contains(text), "{violation} lacks {text}");
        }
    }
}

#[test]
fn answers_that_cannot_be_are_violations() {
    let frame = |payload: &[u8], len: usize| {
        let header = ResponseHeader {
            tag: u64::MAX,
            payload_bytes: len as u64,
            ..ResponseHeader::default()
        };
        [&header.encode()[..], payload].concat()
    };
    let (mut pair, incoming) = asked(&["k"]);
    (pair.server.end).answer(incoming[0].id, tensors([floats(&[1.0])]));
    let good = pair.server.drain()[HEADER_BYTES..].to_vec();
    let twice = [&good[..], &good].concat();
    let first_as_before = [&good[..8], &[1]].concat();
    let cases: [(&[u8], usize, &str); 6] = [
        (
            &first_as_before,
            9,
            "the form of an answer is 1, allowed are 0 to 0",
        ),
        (&twice, twice.len(), "belongs to no outstanding call"),
        (&good[..6], 6, "a tag needs 8 bytes, 6 are left"),
        (&good[..30], 30, "a record needs 37 bytes, 21 are left"),
        (
            &good[..48],
            48,
            "the data of a tensor needs 4 bytes, 2 are left",
        ),
        (&[], 65_537, "is 65537 bytes, allowed are 0 to 65536"),
    ];
    for (payload, len, text) in cases {
        let (mut pair, _) = asked(&["k"]);
        let violation = pair
            .client
            .offer_violation(&frame(payload, len))
            .to_string();
        assert!(violation.contains(text), "{violation} lacks {text}");
    }
    let mut plain = Pair::plain();
    assert_eq!(
        plain.client.offer_violation(&frame(&[], 0)),
        PeerViolation::UnknownTag { found: u64::MAX }
    );
}

/// An answer in a bundle to what wants something else.
#[test]
fn only_receives_are_answered_in_bundles() {
    let (mut pair, incoming) = asked(&["k"]);
    (pair.server.end).answer(incoming[0].id, tensors([floats(&[1.0])]));
    let mut answers = pair.server.drain();
    let (mut other, _) = asked(&["k"]);
    other.client.offer(&answers);
    other.finished().result.unwrap();
    let fused = other.call(fuse(&["a", "b"]));
    answers[HEADER_BYTES..HEADER_BYTES + 8].copy_from_slice(&fused.tag().to_le_bytes());
    let violation = other.client.offer_violation(&answers);
    assert_eq!(violation, PeerViolation::UnknownTag { found: fused.tag() });
}

proptest! {
    /// Any bytes behind the announcements: an error at most.
    #[test]
    fn garbage_is_refused_without_a_panic(
        payload in prop::collection::vec(prop_oneof![Just(0_u8), Just(0x80), any::<u8>()], 0..200),
        piece_bytes in 1_usize..100,
    ) {
        let payload_bytes = payload.len() as u64;
        let (method, tag) = (BUNDLE_METHOD, 1);
        let request = RequestHeader { method, tag, payload_bytes, ..RequestHeader::default() };
        let tag = u64::MAX;
        let answer = ResponseHeader { tag, payload_bytes, ..ResponseHeader::default() };
        let (mut pair, _) = asked(&["k"]);
        for piece in [&request.encode()[..], &payload].concat().chunks(piece_bytes) {
            pair.server.offer(piece);
        }
        for piece in [&answer.encode()[..], &payload].concat().chunks(piece_bytes) {
            pair.client.offer(piece);
        }
    }

    /// Calls of all kinds, in any order, answered in any order and in any pieces, end once with
    /// what was answered.
    #[test]
    fn every_call_ends_once(
        keys in prop::collection::vec((0_u8..6, 0_usize..1200), 1..60),
        piece_bytes in prop::sample::select(vec![1, 5, 50, 4096, usize::MAX]),
        order in any::<u64>(),
    ) {
        let mut pair = Pair::announced();
        pair.piece_bytes = piece_bytes;
        let key = |key: u8| "key".repeat(usize::from(key) * 40);
        let mut expected = std::collections::BTreeMap::new();
        for &(number, len) in &keys {
            let request = match number {
                0 => fuse(&["a", "b"]),
                number => receive(&key(number)),
            };
            expected.insert(pair.call(request).tag(), (number, len));
        }
        pair.carry_requests();
        let mut incoming: Vec<_> = std::iter::from_fn(|| pair.server.end.poll_request()).collect();
        prop_assert_eq!(incoming.len(), keys.len());
        let mut rest: Vec<_> = keys.iter().collect();
        let mut order = order;
        while !incoming.is_empty() {
            order = order.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (order >> 33) as usize % incoming.len();
            let one = incoming.remove(at);
            let &(number, len) = rest.remove(at);
            let answer = match &one.request {
                Request::FuseRecvTensor { keys, .. } => {
                    prop_assert_eq!(number, 0);
                    tensors(keys.iter().map(|_| make::bytes_tensor(len, 1)))
                }
                request => {
                    prop_assert_eq!(request, &receive(&key(number)));
                    tensors([make::bytes_tensor(len, number)])
                }
            };
            prop_assert!(pair.server.end.answer(one.id, answer));
            if order & 4 == 0 {
                pair.carry_responses();
            }
        }
        pair.carry_responses();
        while let Some(finished) = pair.client.end.poll_finished() {
            let (number, len) = expected.remove(&finished.call.tag()).expect("a call ends once");
            let Ok(Response::Tensors(tensors)) = finished.result else {
                panic!("{:?}", finished.result);
            };
            prop_assert_eq!(tensors.len(), if number == 0 { 2 } else { 1 });
            prop_assert_eq!(&tensors[0], &make::bytes_tensor(len, number.max(1)));
        }
        prop_assert!(expected.is_empty());
    }
}

const BUNDLE_METHOD: i32 = 0x4758_0002;
