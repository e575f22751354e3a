//! Extensions never reach a peer that has not announced them.

use grpcxx_rpc::wire::{Announcement, CANCEL_METHOD, RequestHeader, encode_receive};
use grpcxx_rpc::{CallOptions, Code, Features, Method, Response, Status, Text};
use grpcxx_transport::Time;

use crate::support::make::{self, floats, fuse, graph, message, named, receive};
use crate::support::original::{self, Expected, PlainRequest};
use crate::support::{OriginalClient, OriginalServer, Pair, tensors};

fn at(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

/// A client that announces everything asks an original: all it sends is plain star, whatever its
/// callers do.
#[test]
fn an_original_server_gets_plain_star() {
    let mut pair = Pair::new(Features::ALL, Features::NONE);
    let mut server = OriginalServer::default();
    let status = server.take(&pair.client.drain());
    assert_eq!(status.len(), 1);
    assert_eq!(status[0].method, Method::GetStatus);
    assert!(
        status[0].payload.len() > 4,
        "the announcement is an unknown field"
    );

    let exercise = |pair: &mut Pair, server: &mut OriginalServer| {
        let deadline = at(pair.client.now.as_nanos() / 1_000_000 + 50);
        let options = CallOptions {
            token: 3,
            deadline: Some(deadline),
            ..CallOptions::default()
        };
        let calls = [
            pair.call_with(receive("a"), options),
            pair.call_with(fuse(&["b", "c"]), options),
            pair.call_with(message(Method::RunGraph, b"\x0a\x01h"), options),
            pair.call_with(graph("f", vec![("x", floats(&[1.0]))], &["y"]), options),
            pair.call_with(receive("never sent"), options),
        ];
        let unsent = calls[4];
        assert!(pair.client.end.cancel(unsent));
        let requests = server.take(&pair.client.drain());
        assert_eq!(requests.len(), 4);
        assert!(pair.client.end.cancel(calls[0]));
        assert!(
            server.take(&pair.client.drain()).is_empty(),
            "no cancel leaves"
        );
        pair.client.now = deadline;
        pair.client.end.handle_timeout(pair.client.now);
        assert!(server.take(&pair.client.drain()).is_empty());
        assert!(server.is_idle());
        for _ in 0..calls.len() {
            assert!(pair.finished().result.is_err());
        }
        // The original answers all the same, and the connection takes that off the link.
        for PlainRequest { tag, .. } in requests {
            pair.client.offer(&original::response(tag, 13, b"too late"));
        }
        assert_eq!(pair.client.violation, None);
        assert_eq!(pair.client.end.poll_finished(), None);
    };
    exercise(&mut pair, &mut server);
    let body = original::status_body();
    pair.client
        .offer(&original::response(status[0].tag, 0, &body));
    assert_eq!(pair.client.end.peer_features(), Some(Features::NONE));
    assert_eq!(pair.client.end.peer_status().unwrap()[..], body);
    exercise(&mut pair, &mut server);
}

#[test]
fn a_server_that_cannot_say_its_status_counts_as_an_original() {
    let mut pair = Pair::new(Features::ALL, Features::NONE);
    let mut server = OriginalServer::default();
    let tag = server.take(&pair.client.drain())[0].tag;
    pair.client.offer(&original::response(tag, 14, b"starting"));
    assert_eq!(pair.client.end.peer_features(), Some(Features::NONE));
    assert_eq!(pair.client.end.peer_status(), None);
    assert_eq!(pair.client.end.poll_finished(), None);
}

/// A client that announces nothing says nothing first.
#[test]
fn without_features_no_status_is_asked() {
    let mut pair = Pair::plain();
    assert!(pair.client.drain().is_empty());
}

/// An original asks a server that knows everything: all it gets is plain star.
#[test]
fn an_original_client_gets_plain_star() {
    let mut pair = Pair::new(Features::NONE, Features::ALL);
    let mut client = OriginalClient::default();
    let receive_body = |keys: &[&str]| {
        let keys: Vec<Text> = keys.iter().map(|&key| key.into()).collect();
        let mut body = Vec::new();
        encode_receive(make::STEP_ID, keys.iter(), &mut body);
        body
    };
    let mut bytes = client.request(0, 1, b"", Expected::Message);
    bytes.extend(client.request(10, 2, &receive_body(&["a"]), Expected::Tensors(1)));
    bytes.extend(client.request(11, 3, &receive_body(&["b", "c"]), Expected::Tensors(2)));
    bytes.extend(client.request(6, 4, b"\x0a\x01h", Expected::Message));
    bytes.extend(client.request(10, 5, &receive_body(&["fails"]), Expected::Tensors(1)));
    for (tag, method) in [1, 12, 13, 14, 15, 16, 17, 100, 77, -1]
        .into_iter()
        .enumerate()
    {
        bytes.extend(client.request(method, 100 + tag as u64, b"body", Expected::Message));
    }
    pair.server.offer(&bytes);
    let answers = [
        Ok(Response::Message(original::status_body().into())),
        tensors([make::bytes_tensor(9000, 1)]),
        tensors([make::bytes_tensor(10, 1), grpcxx_rpc::Tensor::dead()]),
        Ok(Response::Message(b"".to_vec().into())),
        Err(Status::new(Code::Aborted, "")),
    ];
    for answer in answers {
        let incoming = pair.request();
        assert_eq!(incoming.deadline, None);
        assert!(pair.server.end.answer(incoming.id, answer));
    }
    assert_eq!(pair.server.end.poll_request(), None);
    let responses = client.take(&pair.server.drain());
    assert!(client.is_idle());
    let status = responses.iter().find(|response| response.tag == 1).unwrap();
    assert_eq!(
        status.payload,
        original::status_body(),
        "no announcement without one"
    );
    assert_eq!(pair.server.end.peer_features(), None);
}

/// Bytes that would be extensions mean nothing from a peer that has not announced them.
#[test]
fn an_original_client_cannot_use_extensions_by_accident() {
    let mut pair = Pair::new(Features::NONE, Features::ALL);
    let mut client = OriginalClient::default();
    let mut request = client.request(8, 7, b"\x08\x01", Expected::Message);
    // Originals do not read the status of a request; one that sends it means nothing by it.
    request[16..20].copy_from_slice(&5i32.to_le_bytes());
    pair.server.offer(&request);
    let incoming = pair.request();
    assert_eq!(incoming.deadline, None);
    assert_eq!(pair.server.end.poll_timeout(), None);

    let cancel = client.request(CANCEL_METHOD, 8, b"", Expected::Message);
    pair.server.offer(&cancel);
    let responses = client.take(&pair.server.drain());
    assert_eq!(responses.len(), 1);
    assert_eq!((responses[0].tag, responses[0].status), (8, 12));
    assert_eq!(pair.server.end.poll_cancelled(), None);
    assert!(pair.server.end.is_outstanding(incoming.id));
}

/// A server without features neither announces nor obeys.
#[test]
fn a_server_without_features_is_an_original() {
    let mut pair = Pair::new(Features::ALL, Features::NONE);
    pair.carry_requests();
    let status = pair.request();
    let body = original::status_body();
    pair.server
        .end
        .answer(status.id, Ok(Response::Message(body.clone().into())));
    pair.carry_responses();
    assert_eq!(pair.client.end.peer_features(), Some(Features::NONE));
    assert_eq!(pair.client.end.peer_status().unwrap()[..], body);
    let header = RequestHeader {
        method: CANCEL_METHOD,
        ..RequestHeader::default()
    };
    pair.server.offer(&header.encode());
    assert_eq!(pair.server.end.poll_request(), None);
    let bytes = pair.server.drain();
    assert_eq!(bytes[16], Code::Unimplemented as u8);
}

/// The announcement is appended to what the service said.
#[test]
fn an_announced_client_gets_the_status_and_the_announcement() {
    let mut pair = Pair::new(Features::CANCEL, Features::ALL);
    pair.carry_requests();
    let status = pair.request();
    let body = original::status_body();
    pair.server
        .end
        .answer(status.id, Ok(Response::Message(body.clone().into())));
    pair.carry_responses();
    let seen = pair.client.end.peer_status().unwrap().clone();
    assert_eq!(seen[..body.len()], body);
    let announcement = Announcement {
        features: Features::ALL,
        ..Announcement::default()
    };
    assert_eq!(seen.len(), body.len() + announcement.len_bytes());
    assert_eq!(Announcement::find(&seen), Ok(Some(announcement)));

    // A second question, without an announcement, gets the plain body.
    let body = Response::Message(body.into());
    pair.round_trip(message(Method::GetStatus, b""), Ok(body));
    let named_answer = Ok(Response::Fetched(named(vec![("y", floats(&[1.0]))])));
    pair.round_trip(graph("f", vec![], &["y"]), named_answer);
}

#[test]
fn an_announcement_that_cannot_be_read_is_answered_so() {
    let mut pair = Pair::new(Features::NONE, Features::ALL);
    let mut client = OriginalClient::default();
    pair.server
        .offer(&client.request(0, 1, b"\xea\xa4\x0b\x09", Expected::Message));
    let responses = client.take(&pair.server.drain());
    assert_eq!(responses[0].status, Code::InvalidArgument as i32);
    let text = String::from_utf8(responses[0].payload.clone()).unwrap();
    assert_eq!(
        text,
        "GetStatus message, byte 4: the announcement needs 9 bytes, 0 are left"
    );
    assert_eq!(pair.server.end.peer_features(), None);
}

/// An offer reaches who has announced that it knows what to do with it, and nobody else.
#[test]
fn an_offer_reaches_only_who_can_take_it() {
    let both = Features::CANCEL | Features::SHARED_MEMORY;
    for (client, server, expected) in [
        (both, both, Some(vec![7; 40])),
        (Features::SHARED_MEMORY, both, Some(vec![7; 40])),
        (Features::CANCEL, both, None),
        (both, Features::CANCEL, None),
    ] {
        let mut pair = Pair::new(client, server);
        pair.server.end.set_offer(vec![7; 40]);
        pair.carry_requests();
        let status = pair.server.end.poll_request().unwrap();
        let body = original::status_body();
        let answer = Ok(Response::Message(body.into()));
        pair.server.end.answer(status.id, answer);
        pair.carry_responses();
        assert_eq!(pair.client.end.take_offer(), expected);
        assert_eq!(pair.client.end.take_offer(), None);
    }
}
