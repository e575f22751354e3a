//! Requests that have a number in the place of their keys.

use grpcxx_rpc::wire::{HEADER_BYTES, RequestHeader};
use grpcxx_rpc::{
    Code, Features, KeyList, Method, PeerViolation, Reason, Request, Response, Status, Text,
};
use grpcxx_transport::Outcome;
use proptest::prelude::*;

use crate::support::make::bytes_tensor;
use crate::support::{Pair, tensors};

fn list(name: usize, count: usize) -> KeyList {
    (0..count)
        .map(|key| Text::from(format!("{name}/{key}")))
        .collect()
}

fn request(keys: &KeyList) -> Request {
    Request::FuseRecvTensor {
        step_id: -7,
        keys: keys.clone(),
    }
}

fn answer(keys: &KeyList) -> Result<Response, Status> {
    tensors(keys.iter().map(|key| bytes_tensor(key.len(), 1)))
}

/// Makes a call. Returns the length of its request and what its header has for a list.
fn call(pair: &mut Pair, keys: &KeyList, result: Result<Response, Status>) -> (usize, i32) {
    pair.call(request(keys));
    let bytes = pair.client.drain();
    let header = RequestHeader::decode(bytes[..HEADER_BYTES].try_into().unwrap()).unwrap();
    assert_eq!(header.method, Method::FuseRecvTensor.number());
    for piece in bytes.chunks(pair.piece_bytes) {
        pair.server.offer(piece);
    }
    assert_eq!(pair.server.violation, None);
    let incoming = pair.request();
    assert_eq!(incoming.request, request(keys));
    assert!(pair.server.end.answer(incoming.id, result.clone()));
    pair.carry_responses();
    let arrived = result.map_err(|status| status.because(Reason::Peer));
    assert_eq!(pair.finished().result, arrived);
    (bytes.len(), header.metadata_bytes)
}

#[test]
fn the_third_request_for_a_list_has_its_number() {
    for piece_bytes in [usize::MAX, 1, 7, 33] {
        let mut pair = Pair::announced();
        pair.piece_bytes = piece_bytes;
        let keys = list(0, 100);
        let (long, mark) = call(&mut pair, &keys, answer(&keys));
        assert_eq!((long > 300, mark), (true, 0));
        assert_eq!(call(&mut pair, &keys, answer(&keys)), (long, 1));
        let same = list(0, 100);
        for keys in [&keys, &same] {
            assert_eq!(call(&mut pair, keys, answer(keys)), (HEADER_BYTES + 8, -1));
        }
        let other = list(1, 100);
        assert_eq!(call(&mut pair, &other, answer(&other)).1, 0);
        assert_eq!(call(&mut pair, &other, answer(&other)).1, 2);
        assert_eq!(call(&mut pair, &keys, answer(&keys)).1, -1);
        assert_eq!(call(&mut pair, &other, answer(&other)).1, -2);
    }
}

#[test]
fn a_list_whose_request_failed_is_sent_again() {
    let mut pair = Pair::announced();
    let keys = list(0, 10);
    let failed = Err(Status::new(Code::Aborted, "the step is over"));
    assert_eq!(call(&mut pair, &keys, answer(&keys)).1, 0);
    assert_eq!(call(&mut pair, &keys, failed.clone()).1, 1);
    assert_eq!(call(&mut pair, &keys, failed).1, 1);
    assert_eq!(call(&mut pair, &keys, answer(&keys)).1, 1);
    assert_eq!(call(&mut pair, &keys, answer(&keys)).1, -1);
}

#[test]
fn a_list_whose_request_was_given_up_before_it_left_is_sent_again() {
    let mut pair = Pair::announced();
    let keys = list(0, 10);
    call(&mut pair, &keys, answer(&keys));
    let given_up = pair.call(request(&keys));
    assert!(pair.client.end.cancel(given_up));
    assert_eq!(pair.client.drain(), [0; 0]);
    assert_eq!(pair.finished().result.unwrap_err().code, Code::Cancelled);
    assert_eq!(call(&mut pair, &keys, answer(&keys)).1, 1);
    assert_eq!(call(&mut pair, &keys, answer(&keys)).1, -1);
}

/// Nothing that a peer has not announced is sent to it.
#[test]
fn a_peer_that_has_not_announced_it_gets_keys() {
    for server in [Features::NONE, Features::ALL.without(Features::KEY_LISTS)] {
        let mut pair = Pair::new(Features::ALL, server);
        pair.carry_requests();
        let status = pair.request();
        let body = Ok(Response::Message(vec![].into()));
        assert!(pair.server.end.answer(status.id, body));
        pair.carry_responses();
        let keys = list(0, 10);
        for _ in 0..4 {
            assert_eq!(call(&mut pair, &keys, answer(&keys)).1, 0, "{server}");
        }
    }
}

/// Tensors that were taken for an answer that did not leave come back with their keys.
#[test]
fn an_answer_that_is_lost_names_the_keys_of_its_list() {
    let mut pair = Pair::announced();
    let keys = list(0, 10);
    for _ in 0..2 {
        call(&mut pair, &keys, answer(&keys));
    }
    pair.call(request(&keys));
    pair.carry_requests();
    let incoming = pair.request();
    assert!(pair.server.end.answer(incoming.id, answer(&keys)));
    let frame = pair.server.end.poll_frame().expect("the answer");
    pair.server.end.handle_sent(frame, Outcome::Lost);
    let lost = pair.server.end.poll_undelivered().expect("its tensors");
    assert_eq!(lost.request, request(&keys));
    assert_eq!(lost.tensors.len(), 10);
}

#[test]
fn numbers_that_stand_for_nothing_close_the_connection() {
    let header = |metadata_bytes, payload_bytes| RequestHeader {
        method: Method::FuseRecvTensor.number(),
        tag: 5,
        metadata_bytes,
        payload_bytes,
        ..RequestHeader::default()
    };
    for number in [-1, -33, i32::MIN] {
        let violation = Pair::announced()
            .server
            .offer_violation(&header(number, 8).encode());
        assert_eq!(violation, PeerViolation::UnknownList { found: number });
    }
    let violation = Pair::announced()
        .server
        .offer_violation(&header(-1, 9).encode());
    assert!(matches!(
        violation,
        PeerViolation::Length {
            found: 9,
            allowed_max: 8,
            ..
        }
    ));
}

#[test]
fn a_number_beyond_the_limit_is_refused() {
    let mut pair = Pair::announced();
    pair.call(request(&list(0, 10)));
    let mut bytes = pair.client.drain();
    bytes[20..24].copy_from_slice(&33_i32.to_le_bytes());
    pair.server.offer(&bytes);
    assert_eq!(pair.server.violation, None);
    assert_eq!(pair.server.end.poll_request(), None);
    pair.carry_responses();
    assert_eq!(
        pair.finished().result.unwrap_err().code,
        Code::InvalidArgument
    );
}

proptest! {
    /// Each request arrives with its own keys, however many lists there are and whatever becomes of
    /// them.
    #[test]
    fn requests_arrive_as_they_were_made(
        uses in proptest::collection::vec((0_usize..45, any::<bool>(), 0_u8..8), 1..300),
    ) {
        let mut pair = Pair::announced();
        let lists: Vec<KeyList> = (0..45).map(|name| list(name, 4 + name)).collect();
        for (name, is_other_memory, outcome) in uses {
            let other = list(name, 4 + name);
            let keys = if is_other_memory { &other } else { &lists[name] };
            let result = match outcome {
                0 => Err(Status::new(Code::Aborted, "over")),
                _ => answer(keys),
            };
            call(&mut pair, keys, result);
        }
    }

    /// Whatever header a peer sends, requests end in an answer or in a violation.
    #[test]
    fn damaged_requests_end_in_something(
        changes in proptest::collection::vec((0_usize..40, any::<u8>()), 1..4),
        piece_bytes in 1_usize..50,
    ) {
        let mut pair = Pair::announced();
        let keys = list(0, 10);
        for _ in 0..2 {
            call(&mut pair, &keys, answer(&keys));
        }
        pair.call(request(&keys));
        let mut bytes = pair.client.drain();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        for piece in bytes.chunks(piece_bytes) {
            pair.server.offer(piece);
        }
        while let Some(incoming) = pair.server.end.poll_request() {
            pair.server.end.answer(incoming.id, Err(Status::new(Code::Aborted, "over")));
        }
        pair.server.close(&Status::new(Code::Unavailable, "gone"));
        prop_assert_eq!(pair.server.end.outstanding_requests().count(), 0);
    }
}
