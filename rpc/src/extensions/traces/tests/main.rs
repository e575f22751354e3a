//! Graph calls that say which trace they belong to.

use grpcxx_rpc::{Features, GraphCall, Request, TraceContext};

use crate::support::Pair;

fn traced() -> Request {
    Request::StarRunGraph(Box::new(GraphCall {
        trace: TraceContext::new(7, 9, true),
        ..GraphCall::new("f")
    }))
}

fn trace_of(request: &Request) -> Option<TraceContext> {
    match request {
        Request::StarRunGraph(call) => call.trace,
        other => panic!("another request arrived: {other:?}"),
    }
}

#[test]
fn the_trace_of_a_call_arrives() {
    let mut pair = Pair::announced();
    pair.call(traced());
    pair.carry_requests();
    assert_eq!(pair.request().request, traced());
}

/// Nothing that a peer has not announced is sent to it.
#[test]
fn a_call_waits_until_its_peer_has_said_what_it_knows() {
    for (server, arrives) in [
        (Features::ALL, true),
        (Features::ALL.without(Features::TRACES), false),
        (Features::NONE, false),
    ] {
        let mut pair = Pair::new(Features::ALL, server);
        pair.call(traced());
        pair.answer_announcement();
        pair.carry_requests();
        let arrived = trace_of(&pair.request().request);
        assert_eq!(arrived.is_some(), arrives, "{server}");
    }
}

#[test]
fn a_client_that_announces_nothing_sends_none() {
    let mut pair = Pair::new(Features::NONE, Features::ALL);
    pair.call(traced());
    pair.carry_requests();
    assert_eq!(trace_of(&pair.request().request), None);
}
