//! What a connection lets through that gives its peer fewer rights than all.

use grpcxx_rpc::{Code, Features, Gate, Method, Reason, Request, Response, Right, Rights, Status};

use crate::support::make::{KEY, STEP_ID, bytes_tensor, fuse, graph, message, receive};
use crate::support::{HeapLandings, Pair, tensors};

fn right_of(function: &str) -> Right {
    match function {
        "store.pull" => Right::Pull,
        "store.push" => Right::Push,
        _ => Right::Call,
    }
}

fn guarded(mut pair: Pair, rights: &[Right]) -> Pair {
    let gate = Gate::new(Rights::of(rights), right_of);
    pair.server.end.guard(gate);
    pair
}

/// A request of each kind, and the right that it needs.
fn requests() -> Vec<(Request, Right)> {
    let call = |name, steps| {
        let mut request = graph(name, vec![("x", bytes_tensor(100_000, 1))], &[]);
        if let Request::StarRunGraph(call) = &mut request {
            call.ps_graph_count = steps;
        }
        request
    };
    vec![
        (receive(KEY), Right::Step),
        (fuse(&["a", "b"]), Right::Step),
        (message(Method::CleanupGraph, b"\x08\x01"), Right::Step),
        (message(Method::CleanupAll, b""), Right::Admin),
        (message(Method::RegisterGraph, b"\x0a\x01h"), Right::Call),
        (message(Method::RunGraph, b"\x0a\x01h"), Right::Call),
        (call("store.pull", 0), Right::Pull),
        (call("store.push", 0), Right::Push),
        (call("anything", 0), Right::Call),
    ]
}

fn assert_refused(pair: &mut Pair, request: Request, right: Right) {
    pair.call(request.clone());
    pair.carry_requests();
    assert_eq!(pair.server.end.poll_request(), None, "{request:?}");
    pair.carry_responses();
    let status: Status = pair.finished().result.unwrap_err();
    assert_eq!(status.code, Code::PermissionDenied);
    assert_eq!(status.message, right.missing().message);
    let refused = pair.server.end.take_refused().expect("it is counted");
    assert_eq!((refused.right, refused.count), (right, 1));
    assert_eq!(pair.server.end.take_refused(), None);
}

#[test]
fn a_request_without_its_right_is_refused_and_reaches_nobody() {
    for make in [Pair::plain, Pair::announced] {
        for (request, right) in requests() {
            let others: Vec<Right> = (Right::ALL.into_iter())
                .filter(|&other| other != right)
                .collect();
            let mut pair = guarded(make(), &others);
            for piece_bytes in [usize::MAX, 7] {
                pair.piece_bytes = piece_bytes;
                assert_refused(&mut pair, request.clone(), right);
            }
            // The connection goes on behind what was refused.
            let hello = message(Method::GetStatus, b"");
            pair.round_trip(hello, Ok(Response::Message(vec![].into())));
        }
    }
}

#[test]
fn a_request_with_its_right_passes_whatever_else_is_missing() {
    for make in [Pair::plain, Pair::announced] {
        for (request, right) in requests() {
            let mut pair = guarded(make(), &[right]);
            pair.call(request.clone());
            pair.carry_requests();
            assert_eq!(pair.request().request, request);
            assert_eq!(pair.server.end.take_refused(), None);
        }
    }
}

#[test]
fn a_call_of_a_step_needs_the_right_to_steps_too() {
    let mut pair = guarded(Pair::plain(), &[Right::Pull]);
    let request = graph("store.pull", vec![], &["x"]);
    assert_refused(&mut pair, request, Right::Step);
}

#[test]
fn what_is_refused_takes_no_memory() {
    let mut pair = guarded(Pair::plain(), &[Right::Pull, Right::Step]);
    let request = graph("store.push", vec![("x", bytes_tensor(1 << 20, 1))], &[]);
    pair.call(request);
    pair.carry_requests();
    let HeapLandings { total_bytes, .. } = pair.server.landings;
    assert!(total_bytes < 1000, "{total_bytes} bytes");
    assert!(pair.server.end.is_within_frame() || pair.server.end.take_refused().is_some());
}

#[test]
fn nobody_without_a_right_makes_a_task_read_a_graph_call() {
    let mut pair = guarded(Pair::plain(), &[]);
    assert_refused(&mut pair, graph("store.pull", vec![], &["x"]), Right::Call);
    assert_eq!(pair.server.landings.total_bytes, 0);
}

#[test]
fn keys_numbered_in_refused_requests_keep_their_numbers() {
    let mut pair = guarded(Pair::announced(), &[]);
    for key in ["a", "b", "a"] {
        assert_refused(&mut pair, receive(key), Right::Step);
    }
    pair.server.end.set_rights(Rights::of(&[Right::Step]));
    for key in ["b", "a", "c"] {
        pair.round_trip(receive(key), tensors([bytes_tensor(9, 1)]));
    }
}

#[test]
fn the_caller_of_a_plain_server_learns_the_reason_in_words() {
    let mut pair = guarded(Pair::new(Features::NONE, Features::ALL), &[]);
    pair.call(Request::RecvTensor {
        step_id: STEP_ID,
        key: KEY.into(),
    });
    pair.carry_requests();
    pair.carry_responses();
    let status = pair.finished().result.unwrap_err();
    assert_eq!(status.reason, Reason::Peer);
    assert!(status.message.contains("GRPCXX_MEMBERS"), "{status}");
}
