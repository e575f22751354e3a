//! Each way in which a peer can break the rules of streams.

use grpcxx_memory::{Arena, ArenaOptions};
use grpcxx_rpc::wire::{
    RequestHeader, ResponseHeader, STREAM_METHOD, STREAM_OPEN_METHOD, STREAM_TAG,
};
use grpcxx_rpc::{Code, Gate, PeerViolation, Right, Rights};

use super::*;

/// A frame of a client about streams, of this form.
fn to_server(form: i32, number: i32, payload: &[u8]) -> Vec<u8> {
    let header = RequestHeader {
        method: STREAM_METHOD,
        tag: 0,
        timeout_ms: form,
        metadata_bytes: number,
        payload_bytes: payload.len() as u64,
    };
    [&header.encode()[..], payload].concat()
}

fn to_client(form: i32, number: i32, payload: &[u8]) -> Vec<u8> {
    let header = ResponseHeader {
        tag: STREAM_TAG,
        status: form,
        names_bytes: number,
        payload_bytes: payload.len() as u64,
    };
    [&header.encode()[..], payload].concat()
}

fn opening(tag: u64, head: &[u8], behind: &[u8], head_bytes: i32) -> Vec<u8> {
    let header = RequestHeader {
        method: STREAM_OPEN_METHOD,
        tag,
        timeout_ms: 0,
        metadata_bytes: head_bytes,
        payload_bytes: (head.len() + behind.len()) as u64,
    };
    [&header.encode()[..], head, behind].concat()
}

fn head() -> Vec<u8> {
    [&(PATH.len() as u16).to_le_bytes()[..], PATH.as_bytes()].concat()
}

fn record(number: u32, kind: u8, content: &[u8]) -> Vec<u8> {
    [&number.to_le_bytes()[..], &[kind], content].concat()
}

fn messages(number: u32, messages: &[u8]) -> Vec<u8> {
    let content = [&(messages.len() as u32).to_le_bytes()[..], messages].concat();
    record(number, 0, &content)
}

const END: u8 = 2;
const HEAD: u8 = 3;

#[test]
fn a_client_that_breaks_the_rules_is_closed_with_the_reason() {
    let one = run(&[b"one"]);
    let end = record(0, END, &[]);
    let beyond: Vec<u8> = run(&[&[][..]; 65]).to_vec();
    let part = vec![0; 65_536];
    let cases: [(&str, Vec<Vec<u8>>); 17] = [
        (
            "stream 1, which was never opened",
            vec![to_server(0, 0, &messages(1, &one))],
        ),
        (
            "stream 9, which was never opened",
            vec![to_server(1, 9, b"x")],
        ),
        (
            "65 messages of 260 bytes, allowed are 64 of 65536",
            vec![to_server(0, 0, &messages(0, &beyond))],
        ),
        (
            "0 messages of 65537 bytes, allowed are 64 of 65536",
            vec![to_server(2, 0, &vec![0; 65_537])],
        ),
        (
            "a message is not allowed there",
            vec![to_server(0, 0, &end), to_server(0, 0, &messages(0, &one))],
        ),
        (
            "a part of a message is not allowed there",
            vec![to_server(0, 0, &end), to_server(1, 0, b"x")],
        ),
        (
            "an end is not allowed there",
            vec![to_server(0, 0, &[&end[..], &end].concat())],
        ),
        (
            "a message is not allowed there",
            vec![to_server(2, 0, &part), to_server(0, 0, &messages(0, &one))],
        ),
        (
            "an end is not allowed there",
            vec![to_server(2, 0, &part), to_server(0, 0, &end)],
        ),
        (
            "a record of the other end is not allowed there",
            vec![to_server(0, 0, &record(0, HEAD, &[0; 4]))],
        ),
        (
            "more credits than 32 bits count",
            vec![to_server(0, 0, &record(0, 1, &[255; 8]))],
        ),
        (
            "a part of less than 65536 bytes with which a message goes on is not allowed there",
            vec![to_server(2, 0, &part[1..])],
        ),
        (
            "a part without bytes is not allowed there",
            vec![to_server(2, 0, b"")],
        ),
        (
            "has the form 3, allowed are 0 to 2",
            vec![to_server(3, 0, b"x")],
        ),
        (
            "the kind of a record is 4, allowed are 0 to 3",
            vec![to_server(0, 0, &record(0, 4, &[]))],
        ),
        (
            "a message needs 8 bytes, 7 are left",
            vec![to_server(0, 0, &messages(0, &[4, 0, 0, 0, 1, 2, 3]))],
        ),
        (
            "a message is missing",
            vec![to_server(0, 0, &messages(0, &[]))],
        ),
    ];
    for (text, frames) in cases {
        let mut open = Open::new();
        let (last, before) = frames.split_last().unwrap();
        for frame in before {
            open.pair.server.offer(frame);
            assert_eq!(open.pair.server.violation, None, "{text}");
        }
        let violation = open.pair.server.offer_violation(last).to_string();
        assert!(violation.contains(text), "{violation}, not {text}");
    }
}

#[test]
fn a_server_that_breaks_the_rules_is_closed_with_the_reason() {
    let one = run(&[b"one"]);
    let empty_head = record(0, HEAD, &[0; 4]);
    let cases: [(&str, Vec<u8>); 8] = [
        (
            "stream 1, which was never opened",
            to_client(0, 0, &messages(1, &one)),
        ),
        (
            "0 messages of 65537 bytes, allowed are 64 of 65536",
            to_client(2, 0, &vec![0; 65_537]),
        ),
        (
            "a record of the other end",
            to_client(0, 0, &record(0, END, &[])),
        ),
        (
            "a head is not allowed there",
            to_client(0, 0, &[&empty_head[..], &empty_head].concat()),
        ),
        (
            "a head is not allowed there",
            to_client(0, 0, &[&messages(0, &one)[..], &empty_head].concat()),
        ),
        (
            "the head of a stream, byte 0",
            to_client(0, 0, &record(0, HEAD, &[1, 0, 0, 0, 9])),
        ),
        ("has the form -1", to_client(-1, 0, b"x")),
        (
            "the records of streams is 65537 bytes, allowed are 0 to 65536",
            to_client(0, 0, &vec![0; 65_537]),
        ),
    ];
    for (text, frame) in cases {
        let mut open = Open::new();
        let violation = open.pair.client.offer_violation(&frame).to_string();
        assert!(violation.contains(text), "{violation}, not {text}");
    }
}

#[test]
fn requests_that_open_no_stream_close_the_connection_or_are_answered() {
    let number = [5, 0, 0, 0];
    let cases = [
        (
            "the head of a stream is -1 bytes",
            opening(9, &head(), &number, -1),
        ),
        (
            "the head of a stream is 33283 bytes",
            opening(9, &[0; 33_283], &number, 33_283),
        ),
        (
            "the request that opens a stream is 23 bytes",
            opening(9, &head(), &[0; 3], head().len() as i32),
        ),
        (
            "opens stream 0, allowed are numbers from 1 on",
            opening(9, &head(), &[0; 4], head().len() as i32),
        ),
    ];
    for (text, frame) in cases {
        let mut open = Open::new();
        let violation = open.pair.server.offer_violation(&frame).to_string();
        assert!(violation.contains(text), "{violation}, not {text}");
    }
    // A head that is none is answered, and what is said of the stream is ignored.
    let mut open = Open::new();
    open.pair
        .server
        .offer(&opening(9, &[1, 0, b'x'], &number, 3));
    open.pair
        .server
        .offer(&to_server(0, 0, &messages(5, &run(&[b"one"]))));
    open.pair.server.offer(&to_server(1, 4, b"a gap"));
    assert_eq!(open.pair.server.violation, None);
    assert_eq!(open.pair.server.end.poll_request(), None);
    assert_eq!(open.at_server(), []);
    let answer = open.pair.server.drain();
    assert_eq!(answer[16], Code::InvalidArgument as u8);
}

/// Numbers come again after 2^32 streams.
#[test]
fn the_number_of_an_open_stream_is_not_used_again() {
    let mut open = Open::new();
    let mut offer = |tag, number: u32| {
        let frame = opening(tag, &head(), &number.to_le_bytes(), head().len() as i32);
        open.pair.server.offer(&frame);
        open.pair.server.violation.take()
    };
    assert_eq!(offer(8, 1 << 31), None);
    let violation = offer(9, 0).expect("stream 0 is open").to_string();
    assert!(violation.contains("opens stream 0"), "{violation}");
}

/// Credits count no more than the bytes of the messages.
#[test]
fn a_message_does_not_keep_the_memory_of_the_frame_that_brought_it() {
    let mut open = Open::new();
    let options = ArenaOptions::default().with(|options| options.capacity_bytes = 1 << 20);
    open.pair.server.landings.arena = Some(Arena::new(options).unwrap());
    let more_credit = record(0, 1, &[0; 8]).repeat(4000);
    let payload = [messages(0, &run(&[b"one"])), more_credit].concat();
    open.pair.server.offer(&to_server(0, 0, &payload));
    let heard = open.at_server();
    assert_eq!(heard, [StreamEvent::Messages(run(&[b"one"]), 1)]);
    let arena = open.pair.server.landings.arena.as_mut().unwrap();
    arena.reclaim();
    assert_eq!(arena.statistics().in_use_bytes, 0);
}

#[test]
fn a_client_without_the_right_to_call_opens_no_stream() {
    let mut pair = Pair::announced();
    pair.server
        .end
        .guard(Gate::new(Rights::NONE, |_| Right::Call));
    let call = pair.call(request());
    let data = StreamData::Messages(run(&[b"early"]));
    pair.client.end.send_on_stream(call, data);
    pair.carry_requests();
    pair.carry_responses();
    let status = pair.finished().result.unwrap_err();
    assert_eq!(status.code, Code::PermissionDenied);
}

/// Nothing of this is known to a peer that has not announced it.
#[test]
fn frames_of_streams_from_a_peer_that_has_not_announced_them_are_unknown_methods() {
    let mut pair = Pair::plain();
    pair.server.offer(&to_server(0, 0, &[]));
    assert_eq!(pair.server.violation, None);
    assert_eq!(pair.server.drain()[16], Code::Unimplemented as u8);
    let violation = pair.client.offer_violation(&to_client(0, 0, &[]));
    assert_eq!(violation, PeerViolation::UnknownTag { found: STREAM_TAG });
}
