//! Tensors of types that originals of star do not know.

use grpcxx_rpc::{Code, DType, Features, Request, Response, Shape, Tensor};

use crate::support::make::{fuse, graph, named, receive};
use crate::support::{Pair, tensors};

fn newer() -> impl Iterator<Item = Tensor> {
    let dtypes = DType::ALL.iter().filter(|dtype| !dtype.is_star());
    dtypes.map(|&dtype| {
        let bytes = dtype.data_bytes(5).unwrap() as usize;
        Tensor::new(dtype, Shape::new(&[5]).unwrap(), vec![1; bytes]).unwrap()
    })
}

fn pushing(tensor: Tensor) -> Request {
    graph("f", vec![("x", tensor)], &["y"])
}

/// A pair whose client has read what the server announced.
fn acquainted(server: Features) -> Pair {
    let mut pair = Pair::new(Features::ALL, server);
    pair.answer_announcement();
    pair
}

fn others() -> [Features; 2] {
    [
        Features::NONE,
        Features::ALL.without(Features::ELEMENT_TYPES),
    ]
}

#[test]
fn numbers_are_tensorflows_or_ours() {
    for tensor in newer() {
        let number = tensor.dtype.number();
        let is_tensorflow = (24..=33).contains(&number);
        assert!(is_tensorflow || number >= 200, "{}", tensor.dtype);
        assert_eq!(tensor.dtype.is_tensorflow(), is_tensorflow);
    }
    assert_eq!(DType::Float4E2M1FnPacked.data_bytes(5), Some(3));
    assert_eq!(
        DType::Float6E3M2FnPacked.data_bytes(u64::MAX),
        Some((6 * u128::from(u64::MAX)).div_ceil(8))
    );
}

#[test]
fn they_cross_in_each_kind_of_call() {
    let mut pair = Pair::announced();
    for tensor in newer() {
        let fetched = Response::Fetched(named(vec![("y", tensor.clone())]));
        pair.round_trip(pushing(tensor.clone()), Ok(fetched));
        pair.round_trip(receive("a"), tensors([tensor.clone()]));
        pair.round_trip(fuse(&["a", "b"]), tensors([tensor.clone(), tensor]));
    }
}

#[test]
fn a_call_waits_until_its_peer_has_said_what_it_knows() {
    for tensor in newer() {
        let mut pair = Pair::new(Features::ALL, Features::ALL);
        pair.call(pushing(tensor.clone()));
        pair.answer_announcement();
        pair.carry_requests();
        assert_eq!(pair.request().request, pushing(tensor));
    }
}

#[test]
fn a_peer_that_does_not_know_them_gets_none() {
    for (server, tensor) in others()
        .into_iter()
        .flat_map(|server| newer().map(move |t| (server, t)))
    {
        let mut pair = Pair::new(Features::ALL, server);
        pair.call(pushing(tensor.clone()));
        pair.answer_announcement();
        let refused = pair.finished().result.unwrap_err();
        assert_eq!(refused.code, Code::Unimplemented);
        assert!(refused.message.contains(tensor.dtype.name()), "{refused}");
        pair.call(pushing(tensor.clone()));
        assert_eq!(pair.finished().result, Err(refused));
        assert!(pair.client.end.poll_frame().is_none());
    }
}

#[test]
fn a_client_that_announces_nothing_sends_none() {
    let mut pair = Pair::new(Features::NONE, Features::ALL);
    pair.call(pushing(newer().next().unwrap()));
    assert_eq!(
        pair.finished().result.unwrap_err().code,
        Code::Unimplemented
    );
}

#[test]
fn an_answer_for_a_peer_that_does_not_know_them_says_so() {
    for server in others() {
        let mut pair = acquainted(server);
        for tensor in newer() {
            let fetched = Response::Fetched(named(vec![("y", tensor.clone())]));
            for (request, response) in [
                (graph("f", vec![], &["y"]), Ok(fetched)),
                (receive("a"), tensors([tensor.clone()])),
                (fuse(&["a", "b"]), tensors([tensor.clone(), tensor.clone()])),
            ] {
                pair.call(request);
                pair.carry_requests();
                let request = pair.request();
                assert!(pair.server.end.answer(request.id, response));
                pair.carry_responses();
                let refused = pair.finished().result.unwrap_err();
                assert_eq!(refused.code, Code::Unimplemented);
                assert!(refused.message.contains(tensor.dtype.name()), "{refused}");
            }
        }
    }
}
