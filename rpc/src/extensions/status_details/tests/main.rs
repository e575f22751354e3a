//! Details of failures: between ends that both know them they arrive with the text; nobody else is
//! sent any.

use grpcxx_rpc::wire::{HEADER_BYTES, RequestHeader, ResponseHeader};
use grpcxx_rpc::{
    Code, Envelope, Features, Metadata, PeerViolation, Reason, Request, Response, Status,
};

use crate::support::Pair;
use crate::support::make::{graph, receive};

const MAX: usize = 32 << 10;

fn requests() -> [Request; 3] {
    let envelope = Envelope::request("/a.B/C", &Metadata::default(), 0).unwrap();
    let unary = Request::Unary(Box::new(envelope.finish()));
    [unary, graph("f", vec![], &["x"]), receive("key")]
}

fn failure(details_bytes: usize) -> Status {
    Status::with_details(
        Code::NotFound,
        "no such thing",
        vec![9; details_bytes].into(),
    )
}

/// Two ends of which the server knows this.
fn met(server: Features) -> Pair {
    let mut pair = Pair::new(Features::ALL, server);
    pair.answer_announcement();
    pair
}

/// How a call ends at its client which the server answers with `status`.
fn ended(pair: &mut Pair, request: Request, status: Status) -> Status {
    pair.call(request);
    pair.carry_requests();
    let incoming = pair.request();
    assert!(pair.server.end.answer(incoming.id, Err(status)));
    pair.carry_responses();
    pair.finished().result.unwrap_err()
}

#[test]
fn details_arrive_with_the_text_however_the_bytes_are_cut() {
    for piece_bytes in [usize::MAX, 1, 33] {
        let mut pair = Pair::announced();
        pair.piece_bytes = piece_bytes;
        for request in requests() {
            for details_bytes in [0, 1, 2000, MAX] {
                let status = failure(details_bytes);
                let arrived = ended(&mut pair, request.clone(), status.clone());
                assert_eq!(arrived, status.because(Reason::Peer));
                assert_eq!(arrived.details().len(), details_bytes);
            }
        }
    }
}

/// A server knows what its client understands before that hears the same of it.
#[test]
fn details_may_come_before_the_announcement_of_who_sends_them() {
    let mut pair = Pair::new(Features::ALL, Features::ALL);
    pair.call(graph("f", vec![], &["x"]));
    pair.carry_requests();
    let announcement = pair.request();
    let incoming = pair.request();
    assert!(pair.server.end.answer(incoming.id, Err(failure(2000))));
    pair.carry_responses();
    let arrived = pair.finished().result.unwrap_err();
    assert_eq!(arrived, failure(2000).because(Reason::Peer));
    let body = Ok(Response::Message(vec![].into()));
    assert!(pair.server.end.answer(announcement.id, body));
}

#[test]
fn a_peer_that_has_not_announced_them_gets_the_text_alone() {
    let mut pair = met(Features::ALL.without(Features::STATUS_DETAILS));
    for request in requests() {
        let arrived = ended(&mut pair, request, failure(2 * MAX));
        let alone = Status::not_found("no such thing");
        assert_eq!(arrived, alone.because(Reason::Peer));
    }
}

#[test]
fn details_that_are_too_long_are_named_in_the_text() {
    let mut pair = Pair::announced();
    for text in ["short".to_owned(), "x".repeat(64 << 10)] {
        let status = Status::with_details(Code::Aborted, text, vec![1; MAX + 1].into());
        let [request, ..] = requests();
        let arrived = ended(&mut pair, request, status);
        assert_eq!((arrived.code, arrived.details()), (Code::Aborted, &[][..]));
        let end = "(its details of 32769 bytes were left out, allowed are 32768)";
        assert!(arrived.message.ends_with(end), "{arrived}");
    }
}

/// What a client makes of a failure with this header and payload.
fn offered(names_bytes: i32, payload: &[u8]) -> Option<PeerViolation> {
    let mut pair = Pair::announced();
    let [request, ..] = requests();
    pair.call(request);
    let bytes = pair.client.drain();
    let asked = RequestHeader::decode(bytes[..HEADER_BYTES].try_into().unwrap()).unwrap();
    let header = ResponseHeader {
        tag: asked.tag,
        status: Code::Internal as i32,
        names_bytes,
        payload_bytes: payload.len() as u64,
    };
    pair.client.offer(&[&header.encode()[..], payload].concat());
    pair.client.violation.clone()
}

#[test]
fn lengths_that_are_none_close_the_connection() {
    assert_eq!(offered(2, b"why"), None);
    assert_eq!(offered(3, b"why"), None);
    for (names_bytes, payload) in [
        (-1, &b"why"[..]),
        (4, b"why"),
        (1, b""),
        (MAX as i32 + 1, &[b'x'; MAX + 9]),
    ] {
        let violation = offered(names_bytes, payload).expect("a violation");
        let text = violation.to_string();
        assert!(text.contains("the details of a failure"), "{text}");
    }
}
