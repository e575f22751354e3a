//! Small requests whose tensors are there when they arrive: they are answered before they become
//! requests.

use grpcxx_rpc::wire::RequestHeader;
use grpcxx_rpc::{Code, ConnectionLimits, HeldTensor, Method, Status, Tensor, Text};
use grpcxx_transport::Outcome;

use crate::support::driver::Laid;
use crate::support::make::{self, floats, fuse, receive};
use crate::support::{Pair, tensors};

/// Lays a tensor ready for whoever asks for `name`.
fn lay_ready(pair: &mut Pair, name: &str, tensor: Tensor, is_kept: bool) {
    pair.server.landings.immediate_hits.push(Laid {
        step_id: make::STEP_ID,
        key: Text::from(name),
        tensor: Some(tensor),
        is_kept,
        is_held: false,
    });
}

fn lay(pair: &mut Pair, name: &str, value: f32) {
    lay_ready(pair, name, floats(&[value]), false);
}

/// The places of tensors in the order in which they were laid ready.
fn numbers(held: impl IntoIterator<Item = HeldTensor>) -> Vec<u32> {
    held.into_iter().map(HeldTensor::number).collect()
}

fn keep(pair: &mut Pair, name: &str, value: f32) {
    lay_ready(pair, name, floats(&[value]), true);
}

#[test]
fn what_is_there_is_answered_at_once() {
    for piece_bytes in [1, 33, usize::MAX] {
        let mut pair = Pair::announced();
        pair.piece_bytes = piece_bytes;
        lay(&mut pair, "a", 1.0);
        keep(&mut pair, "b", 2.0);
        let calls = ["a", "b", "c"].map(|key| pair.call(receive(key)));
        pair.carry_requests();
        let incoming = pair.request();
        assert_eq!(incoming.request, receive("c"), "only it was not there");
        assert_eq!(pair.server.end.poll_request(), None);
        (pair.server.end).answer(incoming.id, tensors([floats(&[3.0])]));
        pair.carry_responses();
        for (value, call) in [1.0, 2.0, 3.0].into_iter().zip(calls) {
            let finished = pair.finished();
            assert_eq!(finished.call, call);
            assert_eq!(finished.result, tensors([floats(&[value])]));
        }
        assert_eq!(numbers(pair.server.end.drain_released()), [0]);
        assert!(numbers(pair.server.end.drain_released()).is_empty());
        assert_eq!(pair.server.end.poll_lost(), None);
        assert_eq!(pair.server.end.poll_undelivered(), None);
        assert_eq!(pair.server.end.poll_cancelled(), None);
    }
}

/// checklist 18: a frame that did not leave as a whole was not delivered.
#[test]
fn what_was_taken_and_is_lost_comes_back() {
    for at_link in [true, false] {
        let mut pair = Pair::announced();
        for (name, value) in [("a", 1.0), ("b", 2.0)] {
            lay(&mut pair, name, value);
        }
        keep(&mut pair, "c", 3.0);
        for key in ["a", "b", "c"] {
            pair.call(receive(key));
        }
        pair.carry_requests();
        let gone = Status::new(Code::Unavailable, "gone");
        if at_link {
            let frame = pair.server.end.poll_frame().unwrap();
            pair.server.end.handle_sent(frame, Outcome::Lost);
        }
        pair.server.close(&gone);
        let lost = std::iter::from_fn(|| pair.server.end.poll_lost());
        assert_eq!(numbers(lost), [0, 1]);
        assert!(numbers(pair.server.end.drain_released()).is_empty());
        assert_eq!(pair.server.end.poll_undelivered(), None);
        assert_eq!(pair.server.end.poll_cancelled(), None);
    }
}

#[test]
fn requests_that_came_before_are_served_before() {
    let mut pair = Pair::announced();
    lay(&mut pair, "a", 1.0);
    pair.call(fuse(&["a", "b"]));
    pair.call(receive("a"));
    pair.carry_requests();
    assert_eq!(pair.request().request, fuse(&["a", "b"]));
    assert_eq!(pair.request().request, receive("a"));
    assert!(!pair.server.landings.immediate_hits[0].is_held);
}

#[test]
fn long_tensors_go_the_long_way() {
    let mut pair = Pair::announced();
    let tensor = make::bytes_tensor(grpcxx_rpc::COALESCE_BYTES_MAX + 1, 1);
    lay_ready(&mut pair, "a", tensor, true);
    pair.call(receive("a"));
    pair.carry_requests();
    assert_eq!(pair.request().request, receive("a"));
}

#[test]
fn a_tensor_that_cannot_be_sent_is_an_error_of_its_call_alone() {
    let mut pair = Pair::announced();
    let contradiction = Tensor {
        data: floats(&[1.0, 2.0]).data,
        ..floats(&[1.0])
    };
    lay_ready(&mut pair, "a", contradiction.clone(), true);
    lay_ready(&mut pair, "b", contradiction, false);
    lay(&mut pair, "c", 2.0);
    for key in ["a", "b", "c"] {
        pair.call(receive(key));
    }
    pair.carry_requests();
    assert_eq!(
        numbers(pair.server.end.drain_released()),
        [1],
        "it is dropped, not given back"
    );
    pair.carry_responses();
    assert_eq!(numbers(pair.server.end.drain_released()), [2]);
    assert!(pair.finished().result.is_err());
    assert!(pair.finished().result.is_err());
    assert_eq!(pair.finished().result, tensors([floats(&[2.0])]));
}

/// Whoever asks without reading is bounded by the same limit as one that asks for what takes long.
#[test]
fn answers_that_have_not_left_count_as_requests() {
    let mut pair = Pair::announced_with_limits(
        ConnectionLimits::default().with(|limits| limits.outstanding_calls = 3),
    );
    for name in ["a", "b", "c"] {
        lay(&mut pair, name, 1.0);
        pair.call(receive(name));
    }
    pair.carry_requests();
    let fourth = RequestHeader {
        method: Method::GetStatus.number(),
        tag: 99,
        ..RequestHeader::default()
    };
    pair.server.offer(&fourth.encode());
    let frame = pair.server.end.poll_frame().unwrap();
    assert!(pair.server.end.poll_resume().is_none(), "no room yet");
    pair.server.end.handle_sent(frame, Outcome::Done);
    assert!(pair.server.end.poll_resume().is_some());
}
