//! Responses with all heads before the data: the same tensors arrive as in the form of originals,
//! in whatever pieces, and each takes the memory that it should.

use grpcxx_memory::BufferMut;
use grpcxx_rpc::wire::{DATA_ALIGNMENT_BYTES, HEADER_BYTES, RUN_BYTES, ResponseHeader};
use grpcxx_rpc::{
    Code, ConnectionLimits, DType, Features, Method, PeerViolation, Request, Response, Shape,
    Status, Tensor, Text,
};
use grpcxx_transport::Outcome;
use proptest::prelude::*;

use crate::support;
use crate::support::make::{bytes_tensor, fuse};
use crate::support::{Pair, tensors};

fn request(count: usize) -> Request {
    Request::FuseRecvTensor {
        step_id: 7,
        keys: (0..count)
            .map(|index| Text::from(format!("k{index}")))
            .collect(),
    }
}

/// The bytes of the answer to a request for these tensors.
fn answer(pair: &mut Pair, sent: &[Tensor]) -> Vec<u8> {
    pair.call(request(sent.len()));
    pair.carry_requests();
    let incoming = pair.request();
    assert!(pair.server.end.answer(incoming.id, tensors(sent.to_vec())));
    pair.server.drain()
}

fn received(pair: &mut Pair) -> Vec<Tensor> {
    match pair.finished().result {
        Ok(Response::Tensors(tensors)) => tensors.into_vec(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn small_tensors_come_in_one_piece_of_memory_and_aligned() {
    let mut pair = Pair::announced();
    pair.client.landings.shares = true;
    let sent = [
        bytes_tensor(1000, 1),
        bytes_tensor(1000, 2),
        bytes_tensor(3, 3),
    ];
    let bytes = answer(&mut pair, &sent);
    let head = HEADER_BYTES + 2 * RUN_BYTES;
    assert_eq!(bytes.len(), head + 1024 + 1024 + 64);
    let header = ResponseHeader::decode(bytes[..HEADER_BYTES].try_into().unwrap()).unwrap();
    assert_eq!(header.names_bytes as usize, 2 * RUN_BYTES);
    assert_eq!(header.payload_bytes as usize, bytes.len() - HEADER_BYTES);
    pair.client.offer(&bytes);
    assert_eq!(received(&mut pair), sent);
    assert_eq!(pair.client.landings.blocks, [2112]);
    assert_eq!(pair.client.landings.tensors, []);
}

#[test]
fn a_caller_with_memory_of_its_own_gets_each_tensor_there() {
    let mut pair = Pair::announced();
    let sent = [
        bytes_tensor(1000, 1),
        bytes_tensor(64, 2),
        bytes_tensor(0, 3),
        bytes_tensor(3, 4),
    ];
    let bytes = answer(&mut pair, &sent);
    pair.client.offer(&bytes);
    assert_eq!(received(&mut pair), sent);
    let places = pair.client.landings.tensors.iter().map(|(_, index)| *index);
    assert_eq!(places.collect::<Vec<_>>(), [0, 1, 3]);
}

#[test]
fn memory_is_shared_up_to_a_limit() {
    let mut pair = Pair::announced();
    pair.client.landings.shares = true;
    let sent: Vec<Tensor> = (0..300)
        .map(|seed| bytes_tensor(8 << 10, seed as u8))
        .collect();
    let bytes = answer(&mut pair, &sent);
    pair.client.offer(&bytes);
    assert_eq!(received(&mut pair), sent);
    assert_eq!(
        pair.client.landings.blocks,
        [1 << 20, 1 << 20, 44 * (8 << 10)]
    );
}

#[test]
fn what_is_large_or_parsed_or_alone_comes_as_to_originals() {
    let strings = Tensor::from_strings(Shape::SCALAR, [&b"text"[..]]).unwrap();
    let cases = [
        vec![bytes_tensor(9 << 10, 1), bytes_tensor(5, 1)],
        vec![strings, bytes_tensor(5, 1)],
        vec![bytes_tensor(5, 1)],
    ];
    for sent in cases {
        let mut pair = Pair::announced();
        let bytes = answer(&mut pair, &sent);
        let header = ResponseHeader::decode(bytes[..HEADER_BYTES].try_into().unwrap()).unwrap();
        assert_eq!(header.names_bytes, 0);
        pair.client.offer(&bytes);
        assert_eq!(received(&mut pair), sent);
    }
}

/// Nothing that a peer has not announced is sent to it.
#[test]
fn a_peer_that_has_not_announced_it_gets_records() {
    for client in [Features::NONE, Features::ALL.without(Features::HEADS_FIRST)] {
        for server in [Features::ALL, Features::ALL.without(Features::HEADS_FIRST)] {
            let mut pair = Pair::new(client, server);
            pair.carry_requests();
            if let Some(status) = pair.server.end.poll_request() {
                let body = Ok(Response::Message(vec![].into()));
                assert!(pair.server.end.answer(status.id, body));
            }
            pair.carry_responses();
            let sent = [bytes_tensor(5, 1), bytes_tensor(5, 1)];
            let bytes = answer(&mut pair, &sent);
            assert_eq!(
                bytes.len(),
                HEADER_BYTES + 2 * (37 + 5),
                "{client} {server}"
            );
        }
    }
}

/// The server learns of the client first, so its answers may come before its announcement.
#[test]
fn an_answer_before_the_announcement_is_understood() {
    let mut pair = Pair::new(Features::ALL, Features::ALL);
    pair.call(request(2));
    pair.carry_requests();
    let status = pair.request();
    assert_eq!(status.request.method(), Some(Method::GetStatus));
    let incoming = pair.request();
    let sent = [bytes_tensor(5, 1), bytes_tensor(6, 1)];
    assert!(pair.server.end.answer(incoming.id, tensors(sent.clone())));
    pair.carry_responses();
    assert_eq!(received(&mut pair), sent);
    assert_eq!(pair.client.end.peer_features(), None);
}

#[test]
fn a_call_that_was_given_up_is_dropped_and_the_next_one_arrives() {
    for shares in [false, true] {
        for at_byte in [33, 200, 1500] {
            let mut pair = Pair::announced();
            pair.client.landings.shares = shares;
            let sent = [bytes_tensor(1000, 1), bytes_tensor(1001, 2)];
            let call = pair.call(request(2));
            pair.carry_requests();
            let incoming = pair.request();
            assert!(pair.server.end.answer(incoming.id, tensors(sent.clone())));
            let mut bytes = pair.server.drain();
            pair.client.offer(&bytes[..at_byte]);
            assert!(pair.client.end.cancel(call));
            assert_eq!(pair.finished().result.unwrap_err().code, Code::Cancelled);
            pair.server.offer(&pair.client.drain());
            bytes.drain(..at_byte);
            bytes.extend(answer(&mut pair, &sent));
            pair.client.offer(&bytes);
            assert_eq!(received(&mut pair), sent);
        }
    }
}

#[test]
fn without_memory_the_call_fails_and_the_next_one_does_not() {
    for (shares, piece_bytes_max) in [(false, 100), (true, 100)] {
        let mut pair = Pair::announced();
        pair.client.landings.shares = shares;
        pair.client.landings.piece_bytes_max = piece_bytes_max;
        let bytes = answer(
            &mut pair,
            &[bytes_tensor(3, 1), bytes_tensor(101, 2), bytes_tensor(9, 3)],
        );
        pair.client.offer(&bytes);
        assert_eq!(
            pair.finished().result.unwrap_err().code,
            Code::ResourceExhausted
        );
        let sent = [bytes_tensor(3, 1), bytes_tensor(3, 2)];
        let bytes = answer(&mut pair, &sent);
        pair.client.offer(&bytes);
        assert_eq!(received(&mut pair), sent);
    }
}

#[test]
fn lengths_that_contradict_each_other_close_the_connection() {
    let broken = |change: fn(&mut Vec<u8>)| {
        let mut pair = Pair::announced();
        pair.client.landings.shares = true;
        let mut bytes = answer(&mut pair, &[bytes_tensor(5, 1), bytes_tensor(5, 2)]);
        change(&mut bytes);
        pair.client.offer_violation(&bytes)
    };
    let too_long = broken(|bytes| bytes[20..24].copy_from_slice(&1000_i32.to_le_bytes()));
    assert!(matches!(
        too_long,
        PeerViolation::Length { found: 1000, .. }
    ));
    let negative = broken(|bytes| bytes[23] = 0xff);
    assert!(matches!(negative, PeerViolation::Length { .. }));
    let short = broken(|bytes| bytes[24] -= 1);
    assert!(matches!(
        short,
        PeerViolation::Length {
            found: 127,
            allowed_max: 128,
            ..
        }
    ));
    let one = broken(|bytes| bytes[32] = 1);
    assert!(matches!(one, PeerViolation::Heads(_)));
    let dead = broken(|bytes| bytes[36] = 9);
    assert_eq!(
        dead.to_string(),
        "tensor 0: the dead flag is 9, allowed are 0 and 1"
    );
}

#[test]
fn heads_beyond_the_limit_close_the_connection() {
    let limits = ConnectionLimits::default().with(|limits| limits.names_bytes = RUN_BYTES);
    let mut pair = Pair::with_limits(limits, Features::ALL, Features::ALL);
    pair.carry_requests();
    pair.request();
    let bytes = answer(&mut pair, &[bytes_tensor(5, 1), bytes_tensor(6, 2)]);
    let violation = pair.client.offer_violation(&bytes);
    assert!(matches!(
        violation,
        PeerViolation::Length {
            found: 82,
            allowed_max: 41,
            ..
        }
    ));
}

/// A tensor, and a length that decides of what kind it is.
fn tensor((len, seed): (usize, u8)) -> Tensor {
    match seed % 8 {
        0 => Tensor::dead(),
        1 => Tensor::new(
            DType::Float64,
            Shape::new(&[len as u64 / 8, 8]).unwrap(),
            vec![seed; len / 8 * 64],
        )
        .unwrap(),
        _ => bytes_tensor(len, seed),
    }
}

proptest! {
    #[test]
    fn tensors_arrive_in_whatever_pieces(
        kinds in proptest::collection::vec(
            (prop_oneof![Just(0), Just(64), 0_usize..200, 1000_usize..9000], any::<u8>()),
            1..40,
        ),
        piece_bytes in prop_oneof![Just(usize::MAX), 1_usize..100, 100_usize..20_000],
        shares in any::<bool>(),
    ) {
        let mut pair = Pair::announced();
        pair.client.landings.shares = shares;
        pair.piece_bytes = piece_bytes;
        let sent: Vec<Tensor> = kinds.into_iter().map(tensor).collect();
        for _ in 0..2 {
            pair.round_trip(request(sent.len()), tensors(sent.clone()));
        }
        let alignment = DATA_ALIGNMENT_BYTES as usize;
        prop_assert!(pair.client.landings.blocks.iter().all(|len| len.is_multiple_of(alignment)));
    }

    /// Whatever the bytes are, they end in tensors, in a failure of the call, or in a violation.
    #[test]
    fn damaged_answers_end_in_something(
        kinds in proptest::collection::vec((0_usize..300, any::<u8>()), 2..6),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        piece_bytes in 1_usize..400,
        shares in any::<bool>(),
    ) {
        let mut pair = Pair::announced();
        pair.client.landings.shares = shares;
        // A header that was damaged may announce plain records, which say how long they are one by
        // one.
        pair.client.landings.piece_bytes_max = 1 << 16;
        let sent: Vec<Tensor> = kinds.into_iter().map(tensor).collect();
        let mut bytes = answer(&mut pair, &sent);
        for (at, byte) in changes {
            let at = at.index(bytes.len().min(HEADER_BYTES + 6 * RUN_BYTES));
            bytes[at] = byte;
        }
        for piece in bytes.chunks(piece_bytes) {
            pair.client.offer(piece);
        }
        prop_assert!(pair.client.landings.total_bytes <= 1 << 20 | bytes.len());
        let pieces = pair.client.landings.pieces;
        prop_assert!(pieces <= sent.len() + 2, "{}", pieces);
        pair.client.close(&Status::new(Code::Unavailable, "gone"));
        pair.finished();
        prop_assert_eq!(pair.client.end.outstanding_calls(), 0);
    }
}

#[test]
fn keys_are_counted_before_anything_is_sent() {
    let mut pair = Pair::announced();
    pair.call(fuse(&["a", "b", "c"]));
    pair.carry_requests();
    let incoming = pair.request();
    assert!(pair.server.end.answer(
        incoming.id,
        tensors([bytes_tensor(1, 1), bytes_tensor(2, 2)])
    ));
    pair.carry_responses();
    assert_eq!(pair.finished().result.unwrap_err().code, Code::Internal);
}

/// Where the link lends payload, data is put together in memory that it can lend.
#[test]
fn data_is_put_together_where_the_link_can_lend_it() {
    for (len, is_lent) in [(1001, true), (10, false)] {
        let mut pair = Pair::announced();
        pair.client.landings.shares = true;
        pair.server.end.set_lends(true);
        let sent: Vec<Tensor> = (0..40).map(|seed| bytes_tensor(len, seed)).collect();
        pair.call(request(sent.len()));
        pair.carry_requests();
        let incoming = pair.request();
        let mut asked = Vec::new();
        let mut memory = |len: usize| {
            asked.push(len);
            let mut memory = BufferMut::zeroed(len);
            memory.fill(0xee);
            Some(memory)
        };
        let answered =
            (pair.server.end).try_answer_in(incoming.id, tensors(sent.clone()), &mut memory);
        assert_eq!(answered, Ok(()));
        assert_eq!(asked, if is_lent { vec![40 * 1024] } else { vec![] });
        let frame = pair.server.end.poll_frame().expect("the answer");
        assert_eq!(frame.segment_count() > 1, is_lent);
        if is_lent {
            assert_eq!(frame.segment(1).len(), 40 * 1024);
        }
        let bytes = support::driver::frame_bytes(&frame);
        assert!(
            !bytes[HEADER_BYTES + RUN_BYTES..].ends_with(&[0xee]),
            "nothing else is shown"
        );
        pair.client.offer(&bytes);
        assert_eq!(received(&mut pair), sent);
    }
}

/// What a service keeps travels as all else does, and nobody gets it back.
#[test]
fn tensors_that_their_owner_keeps_arrive_or_are_forgotten() {
    let cases = [
        vec![bytes_tensor(5, 1)],
        vec![bytes_tensor(1000, 1), bytes_tensor(3, 2)],
        vec![bytes_tensor(9 << 10, 1), bytes_tensor(5, 1)],
    ];
    for sent in cases {
        let mut pair = Pair::announced();
        for is_lost in [true, false] {
            pair.call(request(sent.len()));
            pair.carry_requests();
            let id = pair.request().id;
            let mut answer = || pair.server.end.answer_kept_in(id, &sent, &mut |_| None);
            assert!(answer());
            assert!(!answer(), "it has its answer");
            if is_lost {
                let frame = pair.server.end.poll_frame().expect("the answer");
                pair.server.end.handle_sent(frame, Outcome::Lost);
            }
        }
        pair.carry_responses();
        assert_eq!(received(&mut pair), sent);
        pair.server
            .close(&Status::new(Code::Unavailable, "the link is gone"));
        assert_eq!(pair.server.end.poll_undelivered(), None);
    }
}

#[test]
fn kept_tensors_are_counted_too() {
    let mut pair = Pair::announced();
    pair.call(request(3));
    pair.carry_requests();
    let id = pair.request().id;
    let sent = [bytes_tensor(1, 1), bytes_tensor(2, 2)];
    assert!(pair.server.end.answer_kept_in(id, &sent, &mut |_| None));
    pair.carry_responses();
    assert_eq!(pair.finished().result.unwrap_err().code, Code::Internal);
}
