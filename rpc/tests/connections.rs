//! Calls between two connections, without a link between them.

use grpcxx_memory::Buffer;
use grpcxx_rpc::{
    CallOptions, Code, ConnectionLimits, DType, Features, Incoming, Method, NamedTensors, Request,
    Response, ServerConnection, Shape, Status, Tensor,
};
use grpcxx_transport::{Next, Outcome, Refusal, Time};
use smallvec::smallvec;

use crate::support::make::{self, floats, fuse, graph, message, named, receive};
use crate::support::{Pair, Port, tensors};

/// Every kind of call in pieces of every awkward size.
#[test]
fn all_kinds_of_calls_cross_in_any_pieces() {
    for piece_bytes in [1, 2, 31, 32, 33, 37, 64, 100, 4096, usize::MAX] {
        let mut pair = Pair::plain();
        pair.piece_bytes = piece_bytes;
        pair.round_trip(
            message(Method::GetStatus, b""),
            Ok(Response::Message(b"\x0a\0".to_vec().into())),
        );
        pair.round_trip(
            message(Method::RegisterGraph, &[7; 3000]),
            Ok(Response::Message(vec![8; 2000].into())),
        );
        pair.round_trip(receive(make::KEY), tensors([floats(&[1.0, 2.0])]));
        pair.round_trip(receive("k"), tensors([Tensor::dead()]));
        pair.round_trip(
            fuse(&["a", "b", "c"]),
            tensors([make::bytes_tensor(9000, 1), Tensor::dead(), floats(&[3.0])]),
        );
        pair.round_trip(
            graph("f", vec![("x", make::bytes_tensor(700, 2))], &["b", "a"]),
            Ok(Response::Fetched(named(vec![
                ("b", make::bytes_tensor(10, 3)),
                ("a", make::bytes_tensor(20_000, 4)),
            ]))),
        );
        pair.round_trip(
            graph("f", vec![], &[]),
            Ok(Response::Fetched(NamedTensors::new())),
        );
        pair.round_trip(
            receive("k"),
            Err(Status::new(Code::Aborted, "[_Derived_]Step 7 aborted")),
        );
    }
}

/// checklist 10: data around the size that is read straight into its memory.
#[test]
fn data_of_all_sizes_lands_whole() {
    for len in [
        0, 1, 218, 219, 220, 1023, 1024, 1025, 8191, 8192, 8193, 240_000,
    ] {
        for piece_bytes in [777, 8192, usize::MAX] {
            let mut pair = Pair::plain();
            pair.piece_bytes = piece_bytes;
            pair.round_trip(receive("k"), tensors([make::bytes_tensor(len, 5)]));
        }
    }
}

/// checklist 06
#[test]
fn a_thousand_calls_are_answered_in_any_order() {
    let mut pair = Pair::plain();
    for token in 0..1500 {
        let key = format!("key {token}");
        pair.call_with(
            receive(&key),
            CallOptions {
                token,
                ..CallOptions::default()
            },
        );
    }
    assert_eq!(pair.client.end.outstanding_calls(), 1500);
    pair.piece_bytes = 1000;
    pair.carry_requests();
    let mut requests: Vec<Incoming> =
        std::iter::from_fn(|| pair.server.end.poll_request()).collect();
    assert_eq!(requests.len(), 1500);
    // A stride that visits every place, far from the order of arrival.
    for i in 0..1500 {
        let Incoming { id, request, .. } = &mut requests[i * 701 % 1500];
        let Request::RecvTensor { key, .. } = request else {
            panic!("{request:?}");
        };
        let number: f32 = key.strip_prefix("key ").unwrap().parse().unwrap();
        assert!(pair.server.end.answer(*id, tensors([floats(&[number])])));
    }
    pair.carry_responses();
    for i in 0..1500u64 {
        let finished = pair.finished();
        assert_eq!(finished.token, i * 701 % 1500);
        assert_eq!(finished.result, tensors([floats(&[finished.token as f32])]));
    }
    assert_eq!(pair.client.end.poll_finished(), None);
}

/// checklist 17: a lost link ends every call, once.
#[test]
fn a_lost_link_ends_all_calls_with_its_status() {
    let mut pair = Pair::announced();
    let lost = Status::new(Code::Unavailable, "the connection is gone");
    let sent = pair.call(receive("sent"));
    pair.carry_requests();
    let unsent = pair.call(receive("unsent"));
    let cancelled = pair.call(receive("cancelled"));
    pair.client.end.cancel(cancelled);
    pair.client.close(&lost);
    let mut ends: Vec<_> = std::iter::from_fn(|| pair.client.end.poll_finished())
        .map(|finished| (finished.call, finished.result.unwrap_err().code))
        .collect();
    ends.sort_unstable_by_key(|&(call, _)| call);
    let mut expected = vec![
        (sent, Code::Unavailable),
        (unsent, Code::Unavailable),
        (cancelled, Code::Cancelled),
    ];
    expected.sort_unstable_by_key(|&(call, _)| call);
    assert_eq!(ends, expected);
    assert_eq!(pair.client.end.poll_frame().map(|_| ()), None);
    let refused = pair
        .client
        .end
        .call(Time::ZERO, receive("late"), CallOptions::default())
        .unwrap_err();
    assert_eq!(refused.refusal, Refusal::NotOpen);
    assert_eq!(refused.value, receive("late"));
}

#[test]
fn a_full_connection_hands_the_request_back() {
    let limits = ConnectionLimits::default().with(|limits| limits.outstanding_calls = 2);
    let mut pair = Pair::with_limits(limits, Features::ALL, Features::ALL);
    pair.call(receive("a"));
    let b = pair.call(receive("b"));
    let refused = |pair: &mut Pair| {
        let result = pair
            .client
            .end
            .call(Time::ZERO, receive("c"), CallOptions::default());
        result.is_err_and(|refused| refused.refusal == Refusal::Full)
    };
    assert!(refused(&mut pair));
    // A call that was given up before it was sent frees its slot when its frame would have left.
    assert!(pair.client.end.cancel(b));
    pair.carry_requests();
    assert_eq!(pair.finished().call, b);
    assert!(!refused(&mut pair));
    assert!(refused(&mut pair));
}

#[test]
fn a_refused_frame_is_the_next_one_again() {
    let mut pair = Pair::plain();
    pair.call(receive("a"));
    let b = pair.call(receive("b"));
    let frame = pair.client.end.poll_frame().unwrap();
    pair.client.end.unpoll_frame(frame);
    pair.client.end.cancel(b);
    pair.carry_requests();
    assert_eq!(pair.request().request, receive("a"));
    assert_eq!(pair.server.end.poll_request(), None);
}

#[test]
fn a_server_at_its_limit_stops_reading_until_answers_have_left() {
    let limits = ConnectionLimits::default().with(|limits| limits.outstanding_calls = 2);
    let mut pair = Pair::plain();
    pair.server = Port::new(ServerConnection::new(limits, Features::NONE));
    for key in ["a", "b", "c", "d", "e"] {
        pair.call(receive(key));
    }
    pair.carry_requests();
    let mut answered = Vec::new();
    loop {
        let batch: Vec<_> = std::iter::from_fn(|| pair.server.end.poll_request()).collect();
        assert!(batch.len() <= 2);
        for incoming in batch {
            answered.push(incoming.request.clone());
            assert!(
                !pair.server.resume(),
                "an answer that has not left still counts"
            );
            pair.server
                .end
                .answer(incoming.id, tensors([Tensor::dead()]));
        }
        pair.carry_responses();
        if !pair.server.resume() {
            break;
        }
    }
    assert_eq!(answered, ["a", "b", "c", "d", "e"].map(receive));
    for _ in 0..5 {
        assert!(pair.finished().result.is_ok());
    }
}

/// A cancel without the extension: the call ends here, its response is recognised and dropped.
#[test]
fn a_cancelled_call_drops_its_response() {
    for piece_bytes in [1, 50, usize::MAX] {
        let mut pair = Pair::plain();
        pair.piece_bytes = piece_bytes;
        let requests = [
            receive("k"),
            fuse(&["a", "b"]),
            message(Method::RunGraph, b"x"),
            graph("f", vec![], &["y"]),
        ];
        let responses = [
            tensors([make::bytes_tensor(30_000, 1)]),
            tensors([make::bytes_tensor(300, 1), make::bytes_tensor(3000, 2)]),
            Ok(Response::Message(vec![1; 9000].into())),
            Ok(Response::Fetched(named(vec![(
                "y",
                make::bytes_tensor(5000, 3),
            )]))),
        ];
        for (request, response) in requests.into_iter().zip(responses) {
            let call = pair.call(request);
            pair.carry_requests();
            assert!(pair.client.end.cancel(call));
            assert!(!pair.client.end.cancel(call));
            assert_eq!(pair.finished().result.unwrap_err().code, Code::Cancelled);
            let before = pair.client.landings.tensors.len();
            let incoming = pair.request();
            assert!(pair.server.end.answer(incoming.id, response));
            pair.carry_responses();
            assert_eq!(pair.client.landings.tensors.len(), before);
            assert_eq!(pair.client.end.poll_finished(), None);
        }
        pair.round_trip(receive("after"), tensors([floats(&[1.0])]));
    }
}

#[test]
fn a_cancel_while_the_response_lands_drops_the_rest() {
    let mut pair = Pair::plain();
    let call = pair.call(fuse(&["a", "b"]));
    pair.carry_requests();
    let incoming = pair.request();
    let answer = tensors([make::bytes_tensor(9000, 1), make::bytes_tensor(9000, 2)]);
    pair.server.end.answer(incoming.id, answer);
    let bytes = pair.server.drain();
    pair.client.offer(&bytes[..5000]);
    assert!(pair.client.end.cancel(call));
    pair.client.offer(&bytes[5000..]);
    assert_eq!(pair.client.landings.tensors.len(), 1);
    assert_eq!(pair.finished().result.unwrap_err().code, Code::Cancelled);
    assert_eq!(pair.client.end.poll_finished(), None);
    pair.round_trip(receive("after"), tensors([floats(&[1.0])]));
}

/// A link that fetches payload by itself goes on behind landings; calls end in the order of their
/// responses.
#[test]
fn responses_land_beside_each_other_and_end_in_order() {
    let mut pair = Pair::plain();
    let now = Time::ZERO;
    let calls = [
        receive("a"),
        fuse(&["b", "c", "d"]),
        receive("nothing"),
        receive("e"),
    ];
    let calls = calls.map(|request| pair.call(request));
    pair.carry_requests();
    let tensors_of = |numbers: &[u8]| {
        let made = numbers
            .iter()
            .map(|number| make::bytes_tensor(9000, *number));
        Ok(Response::Tensors(made.collect()))
    };
    let answers = [
        tensors_of(&[1]),
        tensors_of(&[2, 3, 4]),
        tensors([Tensor::dead()]),
        tensors_of(&[5]),
    ];
    for answer in &answers {
        let incoming = pair.request();
        assert!(pair.server.end.answer(incoming.id, answer.clone()));
    }
    let bytes = pair.server.drain();
    let client = &mut pair.client;
    let (mut at, mut landings) = (0, Vec::new());
    let mut wanted = client.end.first_order();
    while at < bytes.len() {
        let (begin, end) = match wanted {
            Next::Head { at_least_bytes } => (at, at + at_least_bytes),
            Next::Land(landing) => {
                let (then, len) = (landing.then_head_bytes(), landing.remaining_bytes());
                landings.push((landing, at));
                at += len;
                match then {
                    Some(then) if at < bytes.len() => (at, at + then),
                    _ => break,
                }
            }
            other => panic!("{other:?}"),
        };
        // Only what was asked for is shown, as a link does whose payload lies elsewhere.
        let progress = client
            .end
            .handle_received(now, &bytes[begin..end], &mut client.landings);
        let progress = progress.unwrap();
        at += progress.consumed_bytes;
        wanted = progress.next;
    }
    assert_eq!(landings.len(), 5);
    let mut ended = Vec::new();
    for (mut landing, at) in landings {
        landing.fill_from(&bytes[at..]);
        client
            .end
            .handle_landed(now, landing, &mut client.landings)
            .unwrap();
        let finished = std::iter::from_fn(|| client.end.poll_finished());
        ended.push(finished.collect::<Vec<_>>());
    }
    let counts: Vec<usize> = ended.iter().map(Vec::len).collect();
    assert_eq!(counts, [1, 0, 0, 2, 1]);
    for ((finished, call), answer) in ended.into_iter().flatten().zip(calls).zip(answers) {
        assert_eq!(finished.call, call);
        assert_eq!(finished.result, answer);
    }
}

/// With the extension the server hears of it, and answers at once.
#[test]
fn an_announced_cancel_reaches_the_service() {
    let mut pair = Pair::announced();
    let call = pair.call(receive("k"));
    pair.carry_requests();
    let incoming = pair.request();
    pair.client.end.cancel(call);
    pair.carry_requests();
    assert_eq!(pair.server.end.poll_cancelled(), Some(incoming.id));
    assert_eq!(pair.server.end.poll_cancelled(), None);
    assert!(
        !pair
            .server
            .end
            .answer(incoming.id, tensors([floats(&[1.0])]))
    );
    pair.carry_responses();
    assert_eq!(pair.finished().result.unwrap_err().code, Code::Cancelled);
    assert_eq!(pair.client.end.poll_finished(), None);
    pair.round_trip(receive("after"), tensors([floats(&[1.0])]));
}

/// A call may be given up before the peer has said what it knows. It hears of that then, and once.
#[test]
fn a_cancel_before_the_announcement_is_answered_reaches_the_service() {
    let mut pair = Pair::new(Features::ALL, Features::ALL);
    let [given_up, kept] = [(); 2].map(|()| pair.call(receive("k")));
    pair.carry_requests();
    let announcement = pair.request();
    let incoming = [(); 2].map(|()| pair.request());
    pair.client.end.cancel(given_up);
    pair.carry_requests();
    assert_eq!(pair.server.end.poll_cancelled(), None);
    let body = Ok(Response::Message(vec![].into()));
    assert!(pair.server.end.answer(announcement.id, body));
    pair.carry_responses();
    pair.carry_requests();
    assert_eq!(pair.server.end.poll_cancelled(), Some(incoming[0].id));
    assert_eq!(pair.server.end.poll_cancelled(), None);
    assert_eq!(pair.finished().call, given_up);
    assert!((pair.server.end).answer(incoming[1].id, tensors([floats(&[1.0])])));
    pair.carry_responses();
    assert_eq!(pair.finished().call, kept);
}

#[test]
fn a_cancel_that_crosses_the_answer_is_ignored() {
    let mut pair = Pair::announced();
    let call = pair.call(receive("k"));
    pair.carry_requests();
    let incoming = pair.request();
    pair.client.end.cancel(call);
    assert!(
        pair.server
            .end
            .answer(incoming.id, tensors([floats(&[1.0])]))
    );
    pair.carry_requests();
    assert_eq!(pair.server.end.poll_cancelled(), None);
    pair.carry_responses();
    assert_eq!(pair.finished().result.unwrap_err().code, Code::Cancelled);
    assert_eq!(pair.client.end.poll_finished(), None);
}

#[test]
fn a_request_cancelled_before_it_was_polled_never_shows() {
    let mut pair = Pair::announced();
    let call = pair.call(receive("k"));
    pair.carry_requests();
    pair.client.end.cancel(call);
    pair.carry_requests();
    assert_eq!(pair.server.end.poll_request(), None);
    assert_eq!(pair.server.end.poll_cancelled(), None);
    pair.carry_responses();
    assert_eq!(pair.finished().call, call);
    pair.round_trip(receive("after"), tensors([floats(&[1.0])]));
}

/// An answer between the cancel and the moment the service hears of it.
#[test]
fn tensors_of_an_answer_that_came_too_late_are_given_back() {
    let mut pair = Pair::announced();
    let call = pair.call(receive("k"));
    pair.carry_requests();
    let incoming = pair.request();
    pair.client.end.cancel(call);
    pair.carry_requests();
    assert!(
        !pair
            .server
            .end
            .answer(incoming.id, tensors([floats(&[1.0])]))
    );
    let undelivered = pair.server.end.poll_undelivered().unwrap();
    assert_eq!(undelivered.request, receive("k"));
    assert_eq!(undelivered.tensors[..], [floats(&[1.0])]);
    assert_eq!(pair.server.end.poll_cancelled(), Some(incoming.id));
    assert_eq!(pair.server.end.poll_undelivered(), None);
}

/// checklist 18: what was taken for a peer that has vanished is given back.
#[test]
fn tensors_that_never_left_are_given_back() {
    let mut pair = Pair::plain();
    for request in [receive("a"), receive("b"), fuse(&["c", "d"]), receive("e")] {
        pair.call(request);
    }
    pair.carry_requests();
    let a = pair.request();
    let b = pair.request();
    let c = pair.request();
    let e = pair.request();
    let answers = [floats(&[1.0]), floats(&[2.0])];
    pair.server.end.answer(a.id, tensors([answers[0].clone()]));
    let at_link = pair.server.end.poll_frame().unwrap();
    pair.server.end.answer(b.id, tensors([answers[1].clone()]));
    pair.server.end.answer(c.id, tensors(answers.clone()));
    pair.server.end.handle_sent(at_link, Outcome::Lost);
    pair.server.close(&Status::new(Code::Unavailable, "gone"));
    let given_back: Vec<_> = std::iter::from_fn(|| pair.server.end.poll_undelivered())
        .map(|undelivered| (undelivered.request, undelivered.tensors.to_vec()))
        .collect();
    assert_eq!(
        given_back,
        [
            (receive("a"), vec![answers[0].clone()]),
            (receive("b"), vec![answers[1].clone()]),
            (fuse(&["c", "d"]), answers.to_vec()),
        ]
    );
    assert_eq!(pair.server.end.poll_cancelled(), Some(e.id));
    assert_eq!(pair.server.end.poll_cancelled(), None);
    assert!(!pair.server.end.answer(e.id, tensors([Tensor::dead()])));
}

#[test]
fn tensors_that_have_left_are_not_given_back() {
    let mut pair = Pair::plain();
    pair.round_trip(receive("a"), tensors([floats(&[1.0])]));
    pair.server.close(&Status::new(Code::Unavailable, "gone"));
    assert_eq!(pair.server.end.poll_undelivered(), None);
}

fn at(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

#[test]
fn a_deadline_ends_the_call_here_and_says_so_there() {
    let mut pair = Pair::announced();
    pair.client.now = at(100);
    let options = CallOptions {
        token: 9,
        deadline: Some(at(350)),
        ..CallOptions::default()
    };
    pair.call_with(receive("k"), options);
    assert_eq!(pair.client.end.poll_timeout(), Some(at(350)));
    pair.server.now = at(1000);
    pair.carry_requests();
    let incoming = pair.request();
    assert_eq!(incoming.deadline, Some(at(1250)));
    assert_eq!(pair.server.end.poll_timeout(), Some(at(1250)));

    pair.client.end.handle_timeout(at(349));
    assert_eq!(pair.client.end.poll_finished(), None);
    pair.client.end.handle_timeout(at(350));
    let finished = pair.finished();
    assert_eq!(finished.token, 9);
    assert_eq!(finished.result.unwrap_err().code, Code::DeadlineExceeded);
    assert_eq!(pair.client.end.poll_timeout(), None);
    assert!(
        pair.client.drain().is_empty(),
        "the server knows the deadline itself"
    );

    pair.server.end.handle_timeout(at(1250));
    assert_eq!(pair.server.end.poll_cancelled(), Some(incoming.id));
    assert_eq!(pair.server.end.poll_timeout(), None);
    pair.carry_responses();
    assert_eq!(pair.client.end.poll_finished(), None);
    pair.round_trip(receive("after"), tensors([floats(&[1.0])]));
}

#[test]
fn deadlines_end_calls_soonest_first_and_answers_end_deadlines() {
    let mut pair = Pair::plain();
    for (token, ms) in [(0, 30), (1, 10), (2, 20), (3, 10)] {
        let deadline = Some(at(ms));
        pair.call_with(
            receive("k"),
            CallOptions {
                token,
                deadline,
                ..CallOptions::default()
            },
        );
    }
    pair.carry_requests();
    let first = pair.request();
    assert_eq!(first.deadline, None, "an original sends no deadline");
    pair.server.end.answer(first.id, tensors([Tensor::dead()]));
    pair.carry_responses();
    assert_eq!(pair.finished().token, 0);
    assert_eq!(pair.client.end.poll_timeout(), Some(at(10)));
    pair.client.end.handle_timeout(at(15));
    let mut tokens = [pair.finished().token, pair.finished().token];
    tokens.sort_unstable();
    assert_eq!(tokens, [1, 3]);
    assert_eq!(pair.client.end.poll_timeout(), Some(at(20)));
    pair.client.end.handle_timeout(at(99));
    assert_eq!(pair.finished().token, 2);
    assert_eq!(pair.client.end.poll_timeout(), None);
}

#[test]
fn a_deadline_in_the_past_sends_nothing() {
    let mut pair = Pair::plain();
    pair.client.now = at(50);
    let options = CallOptions {
        token: 1,
        deadline: Some(at(50)),
        ..CallOptions::default()
    };
    pair.call_with(receive("k"), options);
    assert!(pair.client.drain().is_empty());
    let status = pair.finished().result.unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded);
    assert_eq!(pair.client.end.outstanding_calls(), 0);
}

/// A client whose deadline the server does not know tells it with a cancel, if that is understood.
#[test]
fn a_deadline_that_was_not_sent_is_followed_by_a_cancel() {
    let mut pair = Pair::new(Features::CANCEL, Features::ALL);
    pair.carry_requests();
    let status = pair.request();
    let body = Response::Message(vec![].into());
    pair.server.end.answer(status.id, Ok(body));
    pair.carry_responses();
    let deadline = Some(at(5));
    pair.call_with(
        receive("k"),
        CallOptions {
            deadline,
            ..CallOptions::default()
        },
    );
    pair.carry_requests();
    let incoming = pair.request();
    assert_eq!(incoming.deadline, None);
    pair.client.end.handle_timeout(at(5));
    pair.carry_requests();
    assert_eq!(pair.server.end.poll_cancelled(), Some(incoming.id));
    pair.carry_responses();
    assert_eq!(
        pair.finished().result.unwrap_err().code,
        Code::DeadlineExceeded
    );
    assert_eq!(pair.client.end.poll_finished(), None);
}

#[test]
fn memory_that_is_refused_fails_the_call_and_nothing_else() {
    for piece_bytes in [3, usize::MAX] {
        let mut pair = Pair::plain();
        pair.piece_bytes = piece_bytes;
        pair.client.landings.piece_bytes_max = 4000;
        pair.server.landings.piece_bytes_max = 4000;
        let answers = [
            (receive("k"), tensors([make::bytes_tensor(5000, 1)])),
            (
                fuse(&["a", "b", "c"]),
                tensors([
                    make::bytes_tensor(10, 1),
                    make::bytes_tensor(5000, 2),
                    make::bytes_tensor(10, 3),
                ]),
            ),
            (
                message(Method::RunGraph, b""),
                Ok(Response::Message(vec![0; 5000].into())),
            ),
            (
                graph("f", vec![], &["y"]),
                Ok(Response::Fetched(named(vec![(
                    "y",
                    make::bytes_tensor(5000, 3),
                )]))),
            ),
        ];
        for (request, response) in answers {
            pair.call(request);
            pair.carry_requests();
            let incoming = pair.request();
            pair.server.end.answer(incoming.id, response);
            pair.carry_responses();
            let status = pair.finished().result.unwrap_err();
            assert_eq!(status.code, Code::ResourceExhausted);
            assert_eq!(status.message, "no memory for 5000 bytes");
        }
        let too_long = "n".repeat(5000);
        let requests = [
            message(Method::RegisterGraph, &[1; 5000]),
            graph("f", vec![("x", make::bytes_tensor(5000, 3))], &["y"]),
            graph(&too_long, vec![("x", floats(&[1.0]))], &["y"]),
        ];
        for request in requests {
            pair.call(request);
            pair.carry_requests();
            assert_eq!(pair.server.end.poll_request(), None);
            pair.carry_responses();
            let status = pair.finished().result.unwrap_err();
            assert_eq!(status.code, Code::ResourceExhausted, "{status}");
        }
        pair.round_trip(receive("after"), tensors([floats(&[1.0])]));
    }
}

/// checklist 12, with a limit that a test can reach.
#[test]
fn frames_beyond_the_limit_are_not_sent() {
    let limits = ConnectionLimits::default().with(|limits| limits.frame_bytes = 1000);
    let mut pair = Pair::with_limits(limits, Features::NONE, Features::NONE);
    let exact = 1000 - 32 - 37;
    pair.round_trip(receive("k"), tensors([make::bytes_tensor(exact, 1)]));
    pair.call(receive("k"));
    pair.carry_requests();
    let incoming = pair.request();
    pair.server
        .end
        .answer(incoming.id, tensors([make::bytes_tensor(exact + 1, 1)]));
    pair.carry_responses();
    let status = pair.finished().result.unwrap_err();
    assert_eq!(status.code, Code::ResourceExhausted);
    assert_eq!(
        status.message,
        "a frame of 1001 bytes cannot be sent, allowed are 1000"
    );
    pair.call(message(Method::RunGraph, &[0; 969]));
    assert_eq!(
        pair.finished().result.unwrap_err().code,
        Code::ResourceExhausted
    );
    assert!(pair.client.drain().is_empty());
}

#[test]
fn answers_of_the_wrong_kind_or_with_wrong_names_become_internal_errors() {
    let mut pair = Pair::plain();
    let y = || make::bytes_tensor(4, 1);
    let cases = [
        (receive("k"), Ok(Response::Message(vec![].into()))),
        (receive("k"), tensors([])),
        (fuse(&["a", "b"]), tensors([y()])),
        (message(Method::RunGraph, b""), tensors([y()])),
        (
            graph("f", vec![], &["y"]),
            Ok(Response::Fetched(NamedTensors::new())),
        ),
        (
            graph("f", vec![], &["y"]),
            Ok(Response::Fetched(named(vec![("z", y())]))),
        ),
        (
            graph("f", vec![], &["y"]),
            Ok(Response::Fetched(named(vec![("y", y()), ("y", y())]))),
        ),
    ];
    for (request, response) in cases {
        pair.call(request);
        pair.carry_requests();
        let incoming = pair.request();
        assert!(pair.server.end.answer(incoming.id, response));
        pair.carry_responses();
        let status = pair.finished().result.unwrap_err();
        assert_eq!(status.code, Code::Internal, "{status}");
    }
}

#[test]
fn requests_that_cannot_be_sent_end_with_their_reason() {
    let mut pair = Pair::plain();
    let wide = Tensor {
        shape: grpcxx_rpc::Shape::new(&[1; 7]).unwrap(),
        ..make::bytes_tensor(1, 0)
    };
    let cases = [
        (fuse(&[]), Code::InvalidArgument),
        (graph("f", vec![], &["y", "y"]), Code::InvalidArgument),
        (graph("f", vec![("x", wide)], &[]), Code::Unimplemented),
        (message(Method::RecvTensor, b""), Code::InvalidArgument),
        (message(Method::RecvBuf, b""), Code::Unimplemented),
        (message(Method::GetTopologyStatus, b""), Code::Unimplemented),
    ];
    for (request, code) in cases {
        let call = pair.call(request);
        let finished = pair.finished();
        assert_eq!(finished.call, call);
        assert_eq!(finished.result.unwrap_err().code, code);
    }
    assert!(pair.client.drain().is_empty());
    assert_eq!(pair.client.end.outstanding_calls(), 0);
}

#[test]
fn tensors_are_asked_for_by_their_place_in_the_request() {
    let mut pair = Pair::plain();
    let request = graph("f", vec![], &["c", "a", "b"]);
    let answer = named(vec![
        ("a", make::bytes_tensor(1, 1)),
        ("b", make::bytes_tensor(2, 2)),
        ("c", make::bytes_tensor(3, 3)),
    ]);
    let options = CallOptions {
        token: 77,
        ..CallOptions::default()
    };
    pair.call_with(request, options);
    pair.carry_requests();
    let incoming = pair.request();
    pair.server
        .end
        .answer(incoming.id, Ok(Response::Fetched(answer)));
    pair.carry_responses();
    assert_eq!(pair.client.landings.tensors, [(77, 1), (77, 2), (77, 0)]);
    let Ok(Response::Fetched(fetched)) = pair.finished().result else {
        panic!("the call succeeds");
    };
    let names: Vec<_> = fetched.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["c", "a", "b"]);
    assert_eq!(fetched[0].1, make::bytes_tensor(3, 3));
}

#[test]
fn a_status_call_of_the_user_is_its_own() {
    let mut pair = Pair::announced();
    let body = Response::Message(b"\x0a\x02\x0a\0".to_vec().into());
    pair.round_trip(message(Method::GetStatus, b""), Ok(body));
    let status = pair.client.end.peer_status().unwrap();
    assert!(!status.is_empty());
    assert_eq!(pair.server.end.peer_features(), Some(Features::ALL));
}

#[test]
fn an_answer_keeps_a_small_tensor_and_attaches_a_large_one() {
    let mut pair = Pair::plain();
    pair.call(fuse(&["a", "b"]));
    pair.carry_requests();
    let incoming = pair.request();
    let large = make::bytes_tensor(1025, 2);
    let answer = Response::Tensors(smallvec![make::bytes_tensor(1024, 1), large.clone()]);
    pair.server.end.answer(incoming.id, Ok(answer));
    let frame = pair.server.end.poll_frame().unwrap();
    assert_eq!(frame.bytes().len(), 32 + 37 + 1024 + 37);
    let attached = frame.segment(1);
    assert_eq!(attached.as_ptr(), large.data.as_ptr());
    assert_eq!(frame.len_bytes(), 32 + 37 + 1024 + 37 + 1025);
}

/// A graph call with 4 GiB of feeds: the same memory eight times, which nobody touches.
fn call_of_four_gibibytes() -> Request {
    let memory: Buffer = vec![0; 1 << 29].into();
    let shape = Shape::new(&[1 << 29]).unwrap();
    let tensor = Tensor::new(DType::UInt8, shape, memory).unwrap();
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let feeds = names.map(|name| (name, tensor.clone())).to_vec();
    graph("f", feeds, &[])
}

#[test]
fn a_long_frame_waits_until_the_peer_has_said_that_it_takes_it() {
    let features = Features::ALL.without(Features::CHUNKS);
    let mut pair = Pair::new(features, features);
    let given_up = pair.call(call_of_four_gibibytes());
    let call = pair.call(call_of_four_gibibytes());
    pair.call(receive("a"));
    assert!(pair.client.end.cancel(given_up));
    pair.carry_requests();
    let status = pair.request();
    assert_eq!(pair.request().request, receive("a"));
    let status_body = Ok(Response::Message(vec![].into()));
    pair.server.end.answer(status.id, status_body);
    pair.carry_responses();
    assert_eq!(pair.finished().call, given_up);
    let frame = pair.client.end.poll_frame().unwrap();
    assert_eq!(frame.token, call.tag());
    assert!(frame.len_bytes() > 1 << 32);
    assert!(pair.client.end.poll_frame().is_none());
}

#[test]
fn a_long_frame_is_not_sent_to_a_peer_that_does_not_take_it() {
    let others = Features::ALL.without(Features::LONG_FRAMES);
    for server in [others, Features::NONE] {
        let mut pair = Pair::new(Features::ALL, server);
        pair.call(call_of_four_gibibytes());
        pair.carry_requests();
        let status = pair.request();
        let status_body = Ok(Response::Message(vec![].into()));
        pair.server.end.answer(status.id, status_body);
        pair.carry_responses();
        let refused = pair.finished().result.unwrap_err();
        assert_eq!(refused.code, Code::ResourceExhausted);
        assert!(
            refused
                .message
                .ends_with("cannot be sent, allowed are 4294967295")
        );
        assert!(pair.client.end.poll_frame().is_none());
    }
}

#[test]
fn calls_that_wait_for_what_the_peer_takes_end_with_the_link() {
    let mut pair = Pair::new(Features::ALL, Features::ALL);
    let call = pair.call(call_of_four_gibibytes());
    let gone = Status::new(Code::Unavailable, "the link is gone");
    pair.client.end.handle_closed(&gone);
    let finished = pair.finished();
    assert_eq!((finished.call, finished.result), (call, Err(gone)));
    assert!(pair.client.end.poll_frame().is_none());
}
