//! Shapes that no form of star holds: between ends that both know packed shapes they arrive as they
//! were, in requests and answers of every form; an original is sent none.

use grpcxx_rpc::{Code, DType, Features, Request, Response, Shape, Tensor};

use crate::support::make::{bytes_tensor, fuse, graph, named, receive};
use crate::support::{Pair, tensors};

const WIDE: [&[u64]; 5] = [
    &[1, 1, 1, 1, 1, 1, 1],
    &[2, 1, 2, 1, 2, 1, 2, 1, 2],
    &[1, 1, 1, 70_000],
    &[0, 70_000, 1, 1],
    &[1; 64],
];

fn tensor(dims: &[u64], seed: u8) -> Tensor {
    let shape = Shape::new(dims).unwrap();
    let len = shape.num_elements() as usize;
    Tensor::new(DType::UInt8, shape, vec![seed; len]).unwrap()
}

fn wide() -> Vec<Tensor> {
    (1..)
        .zip(WIDE)
        .map(|(seed, dims)| tensor(dims, seed))
        .collect()
}

/// Lets the ends announce themselves.
fn meet(pair: &mut Pair) {
    pair.carry_requests();
    let status = pair.request();
    let body = Ok(Response::Message(vec![].into()));
    pair.server.end.answer(status.id, body);
    pair.carry_responses();
}

#[test]
fn one_tensor_arrives_in_a_frame_of_its_own_and_with_others() {
    let mut pair = Pair::announced();
    for tensor in wide() {
        for _ in 0..2 {
            pair.round_trip(receive("k"), tensors([tensor.clone()]));
        }
    }
}

#[test]
fn many_tensors_arrive_with_heads_first_and_without() {
    let small = vec![bytes_tensor(3, 9), tensor(WIDE[0], 1), tensor(WIDE[1], 2)];
    for sent in [small, wide()] {
        let mut pair = Pair::announced();
        let keys = ["a", "b", "c", "d", "e"];
        pair.round_trip(fuse(&keys[..sent.len()]), tensors(sent));
    }
}

#[test]
fn graph_calls_feed_and_fetch_them() {
    let mut pair = Pair::announced();
    for tensor in wide() {
        let call = graph("f", vec![("x", tensor.clone())], &["y"]);
        let answer = Response::Fetched(named(vec![("y", tensor)]));
        pair.round_trip(call, Ok(answer));
    }
}

#[test]
fn the_first_call_waits_until_the_server_has_announced_itself() {
    let mut pair = Pair::new(Features::ALL, Features::ALL);
    let call = graph("f", vec![("x", tensor(WIDE[0], 1))], &[]);
    pair.call(call.clone());
    meet(&mut pair);
    assert_eq!(pair.client.end.poll_finished(), None);
    pair.carry_requests();
    assert_eq!(pair.request().request, call);
}

#[test]
fn an_original_is_sent_none() {
    let without = Features::ALL.without(Features::PACKED_SHAPES);
    for server in [Features::NONE, without] {
        let mut pair = Pair::new(Features::ALL, server);
        let call = graph("f", vec![("x", tensor(WIDE[0], 1))], &[]);
        pair.call(call.clone());
        meet(&mut pair);
        pair.call(call);
        for _ in 0..2 {
            let status = pair.finished().result.unwrap_err();
            assert_eq!(status.code, Code::Unimplemented);
            assert!(
                status.message.contains("the peer knows no other forms"),
                "{status}"
            );
        }
    }
    let mut pair = Pair::new(without, Features::ALL);
    meet(&mut pair);
    for request in [receive("k"), fuse(&["k", "l"])] {
        let count = if matches!(request, Request::RecvTensor { .. }) {
            1
        } else {
            2
        };
        pair.call(request);
        pair.carry_requests();
        let incoming = pair.request();
        let sent = vec![tensor(WIDE[0], 1); count];
        pair.server.end.answer(incoming.id, tensors(sent));
        pair.carry_responses();
        let status = pair.finished().result.unwrap_err();
        assert_eq!(status.code, Code::Unimplemented);
    }
}
