//! Graph calls with more tensors than originals can answer with.

use grpcxx_rpc::{Code, DType, Features, NamedTensors, Request, Response, Shape, Tensor, Text};

use crate::support::Pair;
use crate::support::make::graph;

const MANY: usize = 40_000;

fn names() -> Vec<String> {
    (0..MANY).map(|index| format!("t{index:05}")).collect()
}

fn tensor() -> Tensor {
    Tensor::new(DType::UInt8, Shape::new(&[1]).unwrap(), vec![7]).unwrap()
}

fn pushing(names: &[String]) -> Request {
    let feeds = names.iter().map(|name| (name.as_str(), tensor()));
    graph("grpcxx.store.push", feeds.collect(), &[])
}

fn pulling(names: &[String]) -> Request {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    graph("grpcxx.store.pull", Vec::new(), &names)
}

fn answer_status(pair: &mut Pair) {
    pair.carry_requests();
    let status = pair.request();
    assert_eq!(pair.server.end.poll_request(), None);
    let body = Ok(Response::Message(vec![].into()));
    assert!(pair.server.end.answer(status.id, body));
    pair.carry_responses();
}

#[test]
fn they_cross_in_one_call() {
    let names = names();
    let mut pair = Pair::announced();
    pair.round_trip(pushing(&names), Ok(Response::Fetched(NamedTensors::new())));
    let tensors = names
        .iter()
        .map(|name| (Text::from(name.as_str()), tensor()));
    let fetched = Response::Fetched(tensors.collect());
    pair.round_trip(pulling(&names), Ok(fetched));
}

#[test]
fn a_call_waits_until_its_peer_has_said_what_it_takes() {
    let names = names();
    for request in [pushing(&names), pulling(&names)] {
        let mut pair = Pair::new(Features::ALL, Features::ALL);
        pair.call(request.clone());
        answer_status(&mut pair);
        pair.carry_requests();
        assert_eq!(pair.request().request, request);
    }
}

#[test]
fn a_peer_that_does_not_take_them_gets_none() {
    let names = names();
    let others = Features::ALL.without(Features::MANY_TENSORS);
    for server in [others, Features::NONE] {
        for request in [pushing(&names), pulling(&names)] {
            let mut pair = Pair::new(Features::ALL, server);
            pair.call(request);
            answer_status(&mut pair);
            let refused = pair.finished().result.unwrap_err();
            assert_eq!(refused.code, Code::ResourceExhausted);
            for part in ["40000 tensors", "32767"] {
                assert!(refused.message.contains(part), "{refused}");
            }
            assert!(pair.client.end.poll_frame().is_none());
        }
    }
}

#[test]
fn keys_of_one_request_are_as_many_as_in_star() {
    let mut pair = Pair::announced();
    let keys = vec![Text::from("a"); MANY].into();
    pair.call(Request::FuseRecvTensor { step_id: 1, keys });
    let refused = pair.finished().result.unwrap_err();
    assert_eq!(refused.code, Code::ResourceExhausted);
}
