//! Methods of services that are called by their path.

use std::time::Duration;

use grpcxx_memory::Buffer;
use grpcxx_rpc::wire::{HEADER_BYTES, RequestHeader, ResponseHeader, UNARY_METHOD};
use grpcxx_rpc::{
    CallOptions, Code, ConnectionLimits, Envelope, Features, Gate, Metadata, REQUEST_FEED,
    RESPONSE_FETCH, Reason, Request, Response, Right, Rights, Shape, Status,
};
use proptest::prelude::*;

use crate::support::Pair;

const PATH: &str = "/demo.Greeter/SayHello";

fn metadata() -> Metadata {
    let mut metadata = Metadata::default();
    metadata.insert("trace-bin", [7, 0, 255]).unwrap();
    metadata
}

/// Metadata that say where a call was made, and not what it asks for.
fn hints() -> Metadata {
    let mut metadata = Metadata::default();
    metadata.insert("traceparent", "00-1-2-3").unwrap();
    metadata.insert("tracestate", "a=b").unwrap();
    metadata
}

fn request(metadata: &Metadata, message: &[u8]) -> Request {
    let mut writer = Envelope::request(PATH, metadata, message.len()).unwrap();
    writer.bytes_mut().extend_from_slice(message);
    Request::Unary(Box::new(writer.finish()))
}

fn answer(metadata: &Metadata, message: &[u8]) -> Result<Response, Status> {
    let mut writer = Envelope::answer(metadata, message.len());
    writer.bytes_mut().extend_from_slice(message);
    Ok(Response::Unary(writer.finish()))
}

#[test]
fn message_and_metadata_cross_in_one_frame_each_way() {
    for piece_bytes in [usize::MAX, 1, 7, 33] {
        for len in [0, 1, 64, 2000] {
            let message = vec![5; len];
            for metadata in [Metadata::default(), metadata()] {
                let mut pair = Pair::announced();
                pair.piece_bytes = piece_bytes;
                pair.round_trip(request(&metadata, &message), answer(&metadata, &message));
            }
        }
    }
}

#[test]
fn a_call_says_its_path_its_metadata_and_its_message() {
    let Request::Unary(envelope) = request(&metadata(), b"hello") else {
        unreachable!("it was just made")
    };
    assert_eq!(envelope.path(), PATH);
    assert_eq!(envelope.request_metadata(), metadata());
    assert_eq!(&envelope.message()[..], b"hello");
    assert_eq!(envelope.message_bytes(), 5);
    let Ok(Response::Unary(envelope)) = answer(&metadata(), b"bye") else {
        unreachable!("it was just made")
    };
    assert_eq!(envelope.answer_metadata(), metadata());
    assert_eq!(&envelope.message()[..], b"bye");
}

/// The bytes of the page on the wire.
#[test]
fn a_request_is_header_path_metadata_and_message() {
    let mut pair = Pair::announced();
    let mut metadata = Metadata::default();
    metadata.insert("a", "b").unwrap();
    pair.call(request(&metadata, b"xyz"));
    let bytes = pair.client.drain();
    let header = RequestHeader::decode(bytes[..HEADER_BYTES].try_into().unwrap()).unwrap();
    let head = [
        &[22, 0][..],
        PATH.as_bytes(),
        &[1, 0],
        b"a",
        &[1, 0, 0, 0],
        b"b",
    ]
    .concat();
    assert_eq!(header.method, UNARY_METHOD);
    assert_eq!(header.metadata_bytes, head.len() as i32);
    assert_eq!(header.payload_bytes, head.len() as u64 + 3);
    assert_eq!(&bytes[HEADER_BYTES..], [&head[..], b"xyz"].concat());
}

#[test]
fn large_pieces_are_sent_from_where_they_lie() {
    let tensor = Buffer::from(vec![9; 100_000]);
    let mut writer = Envelope::request(PATH, &Metadata::default(), 10).unwrap();
    writer.bytes_mut().extend_from_slice(b"before");
    writer.attach(tensor.clone());
    writer.bytes_mut().extend_from_slice(b"behind");
    let mut pair = Pair::announced();
    pair.call(Request::Unary(Box::new(writer.finish())));
    assert!(!tensor.is_unique(), "a copy was made");
    pair.carry_requests();
    let Request::Unary(envelope) = pair.request().request else {
        panic!("another request arrived");
    };
    let message = envelope.message();
    assert_eq!(message.len(), 100_012);
    assert!(message.starts_with(b"before\x09") && message.ends_with(b"\x09behind"));
}

/// Nothing that a peer has not announced is sent to it.
#[test]
fn a_peer_that_has_not_announced_it_gets_a_graph_call() {
    for server in [Features::NONE, Features::ALL.without(Features::SERVICES)] {
        let mut pair = Pair::new(Features::ALL, server);
        // It waits for what the peer says of itself.
        pair.call(request(&hints(), b"hello"));
        pair.answer_announcement();
        pair.carry_requests();
        let incoming = pair.request();
        let Request::StarRunGraph(call) = &incoming.request else {
            panic!("another request arrived: {:?}", incoming.request);
        };
        assert_eq!(call.graph_handle.as_str(), PATH);
        let feed = call.feed(REQUEST_FEED).unwrap();
        assert_eq!(
            (&feed.data[..], &feed.shape),
            (&b"hello"[..], &Shape::vector(5))
        );
        assert_eq!(call.fetches[0].as_str(), RESPONSE_FETCH);
        let fetched = Response::Fetched(vec![(RESPONSE_FETCH.into(), feed.clone())].into());
        assert!(pair.server.end.answer(incoming.id, Ok(fetched.clone())));
        pair.carry_responses();
        assert_eq!(pair.finished().result, Ok(fetched));
    }
}

/// Plain star has no place for metadata, and a method may need them.
#[test]
fn a_call_with_metadata_fails_towards_a_peer_that_has_not_announced_it() {
    let check = |pair: &mut Pair| {
        let status = pair.finished().result.unwrap_err();
        assert_eq!(status.code, Code::FailedPrecondition, "{status}");
        for part in ["\"trace-bin\"", PATH, "services", "over gRPC"] {
            assert!(status.message.contains(part), "{status} lacks {part}");
        }
        pair.carry_requests();
        assert_eq!(pair.server.end.poll_request(), None);
    };
    for server in [Features::NONE, Features::ALL.without(Features::SERVICES)] {
        let mut pair = Pair::new(Features::ALL, server);
        let mut both = hints();
        both.insert("trace-bin", [1]).unwrap();
        // Before it is known what the peer takes, and then.
        pair.call(request(&both, b"hello"));
        pair.answer_announcement();
        check(&mut pair);
        pair.call(request(&metadata(), b"hello"));
        check(&mut pair);
    }
    let mut silent = Pair::new(Features::NONE, Features::ALL);
    silent.call(request(&metadata(), b"hello"));
    check(&mut silent);
}

/// A peer that could not say what it knows may know services: what went wrong is the reason.
#[test]
fn a_call_with_metadata_ends_as_the_announcement_did_that_failed() {
    let mut pair = Pair::new(Features::ALL, Features::ALL);
    pair.call(request(&metadata(), b"one"));
    pair.carry_requests();
    let announcement = pair.request();
    let full = Status::new(Code::ResourceExhausted, "no memory is left");
    pair.server.end.answer(announcement.id, Err(full));
    pair.carry_responses();
    let check = |status: Status| {
        assert_eq!(status.code, Code::ResourceExhausted, "{status}");
        for part in ["\"trace-bin\"", PATH, "did not say", "no memory is left"] {
            assert!(status.message.contains(part), "{status} lacks {part}");
        }
    };
    check(pair.finished().result.unwrap_err());
    pair.call(request(&metadata(), b"two"));
    check(pair.finished().result.unwrap_err());
}

#[test]
fn a_call_that_waits_for_the_announcement_leaves_once_it_is_there_and_can_be_given_up() {
    let mut pair = Pair::new(Features::ALL, Features::ALL);
    let given_up = pair.call(request(&metadata(), b"one"));
    pair.call(request(&metadata(), b"two"));
    assert!(pair.client.end.cancel(given_up));
    assert_eq!(pair.finished().result.unwrap_err().code, Code::Cancelled);
    pair.carry_requests();
    let status = pair.request();
    pair.server
        .end
        .answer(status.id, Ok(Response::Message(vec![].into())));
    pair.carry_responses();
    pair.carry_requests();
    let incoming = pair.request();
    assert_eq!(incoming.request, request(&metadata(), b"two"));
    pair.server
        .end
        .answer(incoming.id, answer(&metadata(), b"2"));
    pair.carry_responses();
    assert_eq!(pair.finished().result, answer(&metadata(), b"2"));
    assert_eq!(pair.server.end.poll_request(), None);
    assert_eq!(pair.client.end.outstanding_calls(), 0);
}

#[test]
fn a_call_that_waits_for_the_announcement_says_its_deadline_to_who_understands() {
    for (server, is_said) in [
        (Features::ALL, true),
        (Features::ALL.without(Features::DEADLINE), false),
    ] {
        let mut pair = Pair::new(Features::ALL, server);
        let deadline = pair.client.now + Duration::from_secs(3);
        let options = CallOptions {
            deadline: Some(deadline),
            ..CallOptions::default()
        };
        pair.call_with(request(&metadata(), b"one"), options);
        pair.answer_announcement();
        pair.carry_requests();
        assert_eq!(pair.request().deadline.is_some(), is_said);
    }
}

#[test]
fn calls_that_wait_end_with_the_link() {
    let mut pair = Pair::new(Features::ALL, Features::ALL);
    pair.call(request(&metadata(), b"one"));
    let lost = Status::new(Code::Unavailable, "the link is gone");
    pair.client.end.handle_closed(&lost);
    assert_eq!(pair.finished().result, Err(lost));
}

#[test]
fn messages_beyond_the_limit_are_refused_by_either_end() {
    let small = ConnectionLimits::default().with(|limits| limits.message_bytes = 100);
    let mut pair = Pair::announced_with_limits(small);
    pair.call(request(&metadata(), &[1; 101]));
    let status = pair.finished().result.unwrap_err();
    assert_eq!(status.code, Code::ResourceExhausted);

    // A client that allows more than its server does.
    let mut other = Pair::announced();
    other.server = Pair::announced_with_limits(small).server;
    other.call(request(&metadata(), &[1; 101]));
    other.call(request(&metadata(), &[1; 100]));
    other.carry_requests();
    assert_eq!(other.request().request, request(&metadata(), &[1; 100]));
    other.carry_responses();
    let status = other.finished().result.unwrap_err();
    assert_eq!(
        (status.code, status.reason),
        (Code::ResourceExhausted, Reason::Peer)
    );
}

#[test]
fn a_peer_without_the_right_to_call_is_refused() {
    let mut pair = Pair::announced();
    let rights = Rights::of(&[Right::Step]);
    pair.server.end.guard(Gate::new(rights, |_| Right::Call));
    pair.call(request(&metadata(), b"hello"));
    pair.carry_requests();
    assert_eq!(pair.server.end.poll_request(), None);
    pair.carry_responses();
    let status = pair.finished().result.unwrap_err();
    assert_eq!(status.code, Code::PermissionDenied);
}

/// Sends a header and a payload, and says how the server ends it.
fn refused(metadata_bytes: i32, payload: &[u8]) -> Code {
    let mut pair = Pair::announced();
    let header = RequestHeader {
        method: UNARY_METHOD,
        tag: 77,
        metadata_bytes,
        payload_bytes: payload.len() as u64,
        timeout_ms: 0,
    };
    pair.server.offer(&[&header.encode()[..], payload].concat());
    assert_eq!(pair.server.violation, None);
    assert_eq!(pair.server.end.poll_request(), None);
    let bytes = pair.server.drain();
    let answer = ResponseHeader::decode(bytes[..HEADER_BYTES].try_into().unwrap()).unwrap();
    assert_eq!(answer.tag, 77);
    // What follows is read as if nothing had been.
    pair.round_trip(
        request(&metadata(), b"next"),
        self::answer(&metadata(), b"ok"),
    );
    Code::from_number(answer.status).expect("it was refused")
}

#[test]
fn a_head_that_is_none_is_refused_alone() {
    for (metadata_bytes, payload, code) in [
        (0, &b""[..], Code::InvalidArgument),
        (2, b"\x05\0", Code::InvalidArgument),
        (7, b"\x05\0hello", Code::InvalidArgument),
        (7, b"\x05\0/a/\xff\xff", Code::InvalidArgument),
        (-1, b"\x04\0/a/b", Code::ResourceExhausted),
        (100, b"\x04\0/a/b", Code::ResourceExhausted),
        (8, b"\x04\0/a/b\x01\0", Code::InvalidArgument),
    ] {
        assert_eq!(
            refused(metadata_bytes, payload),
            code,
            "{metadata_bytes} {payload:?}"
        );
    }
}

#[test]
fn paths_that_are_none_are_not_sent() {
    for path in ["", "a/b", "/a", "//b", "/a/", "/a/b c", "/a/\u{e9}"] {
        let status = Envelope::request(path, &Metadata::default(), 0).unwrap_err();
        assert_eq!(status.code, Code::InvalidArgument, "{path}");
    }
    let long = format!("/a/{}", "b".repeat(510));
    assert!(Envelope::request(&long, &Metadata::default(), 0).is_err());
}

proptest! {
    #[test]
    fn heads_of_any_bytes_are_read_or_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        head_bytes in 0usize..220,
    ) {
        let buffer = Buffer::from(bytes);
        if let Ok(envelope) = Envelope::decode_request(head_bytes, buffer.clone()) {
            prop_assert!(envelope.path().starts_with('/'));
            let message = envelope.message();
            let again = Envelope::request(envelope.path(), &envelope.request_metadata(), 0);
            let mut again = again.unwrap();
            again.bytes_mut().extend_from_slice(&message);
            prop_assert_eq!(again.finish(), envelope);
        }
        if let Ok(envelope) = Envelope::decode_answer(head_bytes, buffer) {
            let message = envelope.message();
            let mut again = Envelope::answer(&envelope.answer_metadata(), 0);
            again.bytes_mut().extend_from_slice(&message);
            prop_assert_eq!(again.finish(), envelope);
        }
    }
}
