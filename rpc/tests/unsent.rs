//! A peer that asks and does not read gets no more than its share of answers.

use grpcxx_memory::Buffer;
use grpcxx_rpc::wire::Features;
use grpcxx_rpc::{Code, ConnectionLimits, Method, Response};

use crate::support::make::{bytes_tensor, message, receive};
use crate::support::{Pair, tensors};

#[test]
fn requests_wait_while_too_much_is_unsent() {
    let limits = ConnectionLimits::default().with(|limits| limits.unsent_bytes = 5000);
    let mut pair = Pair::with_limits(limits, Features::NONE, Features::NONE);
    for key in ["a", "b", "c", "d"] {
        pair.call(receive(key));
    }
    pair.carry_requests();
    let large = || tensors([bytes_tensor(3000, 1)]);
    for _ in 0..2 {
        let id = pair.request().id;
        assert!(pair.server.end.answer(id, large()));
    }
    assert_eq!(pair.server.end.poll_request(), None);
    assert!(
        !pair.server.end.has_requests(),
        "nobody looks for them in vain"
    );
    for _ in 0..2 {
        pair.carry_responses();
        let id = pair.request().id;
        assert!(pair.server.end.answer(id, large()));
    }
    pair.carry_responses();
    for _ in 0..4 {
        assert_eq!(pair.finished().result, large());
    }
}

#[test]
fn one_long_answer_alone_holds_up_nobody() {
    let limits = ConnectionLimits::default().with(|limits| limits.unsent_bytes = 1000);
    let mut pair = Pair::with_limits(limits, Features::NONE, Features::NONE);
    pair.call(receive("a"));
    pair.call(receive("b"));
    pair.carry_requests();
    let id = pair.request().id;
    let large = tensors([bytes_tensor(100_000, 1)]);
    assert!(pair.server.end.answer(id, large));
    assert!(pair.server.end.poll_request().is_some());
}

#[test]
fn answers_that_come_too_late_to_wait_are_refused() {
    let limits = ConnectionLimits::default().with(|limits| limits.unsent_bytes = 1000);
    let mut pair = Pair::with_limits(limits, Features::NONE, Features::NONE);
    for _ in 0..4 {
        pair.call(message(Method::CleanupGraph, b""));
    }
    pair.carry_requests();
    let ids: Vec<_> = (0..4).map(|_| pair.request().id).collect();
    for id in ids {
        let body = Buffer::from(vec![0; 3000]);
        assert!(pair.server.end.answer(id, Ok(Response::Message(body))));
    }
    pair.carry_responses();
    let results: Vec<_> = (0..4).map(|_| pair.finished().result).collect();
    let codes = results
        .iter()
        .map(|result| result.as_ref().err().map(|status| status.code));
    let refused = Some(Code::ResourceExhausted);
    assert_eq!(codes.collect::<Vec<_>>(), [None, None, refused, refused]);
}
