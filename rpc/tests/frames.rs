//! checklist 13: the golden frames, each in the direction it travels, decoded and encoded again.

use grpcxx_memory::Buffer;
use grpcxx_rpc::proto::{
    CleanupGraphRequest, GetStatusResponse, RegisterGraphResponse, RunGraphRequest,
    RunGraphResponse, TensorProto,
};
use grpcxx_rpc::{CallOptions, Code, Method, PeerViolation, Request, Response, Status, Tensor};
use prost::Message;
use serde::Deserialize;
use serde_json::Value;

use crate::support::make::{fuse, graph, message, receive};
use crate::support::{Pair, tensors};

#[derive(Deserialize)]
struct Vector {
    name: String,
    direction: String,
    expect: String,
    fields: Value,
    total_len: usize,
    hex: String,
}

/// Frames of originals that we read and would write in another form.
const DECODED_ONLY: [&str; 2] = [
    "recv_tensor_response_rep32_small_dims",
    "recv_tensor_response_garbage_unused_bytes",
];

fn vectors() -> Vec<Vector> {
    let vectors: Vec<Vector> = serde_json::from_str(include_str!("data/star-frames.json")).unwrap();
    assert_eq!(vectors.len(), 31);
    vectors
}

impl Vector {
    fn bytes(&self) -> Vec<u8> {
        let bytes: Vec<u8> = (0..self.hex.len() / 2)
            .map(|i| u8::from_str_radix(&self.hex[2 * i..2 * i + 2], 16).unwrap())
            .collect();
        assert_eq!(bytes.len(), self.total_len, "{}", self.name);
        bytes
    }

    fn text(&self, field: &str) -> &str {
        self.fields[field].as_str().unwrap()
    }

    fn texts(&self, field: &str) -> Vec<&str> {
        let values = self.fields[field].as_array().unwrap();
        values.iter().map(|value| value.as_str().unwrap()).collect()
    }

    fn number(&self, field: &str) -> i64 {
        self.fields[field].as_i64().unwrap()
    }

    fn tag(&self) -> [u8; 8] {
        let tag = self.fields["header"]["tag"].as_str().unwrap();
        let tag = tag.strip_prefix("0x").unwrap();
        u64::from_str_radix(tag, 16).unwrap().to_le_bytes()
    }

    /// A request that a response of this kind answers.
    fn asked(&self) -> Request {
        match self.name.as_str() {
            "fuse_recv_tensor_response" | "fuse_recv_tensor_response_one_dead" => fuse(&["a", "b"]),
            "star_run_graph_response" => graph("h", vec![], &self.texts("fetch_names")),
            "star_run_graph_response_no_fetch" => graph("h", vec![], &[]),
            "run_graph_response_error_in_body" => message(Method::RunGraph, b""),
            "register_graph_response" => message(Method::RegisterGraph, b""),
            "get_status_response_one_device" => message(Method::GetStatus, b""),
            "empty_ok_response" => message(Method::CleanupGraph, b""),
            "error_response_logging_unimplemented" => message(Method::Logging, b""),
            "error_response_aborted" | "reject_empty_error_message" => receive("k"),
            name => {
                assert!(self.fields.get("tensor").is_some(), "{name}");
                receive("k")
            }
        }
    }

    fn check_tensor(&self, tensor: &Tensor, fields: &Value) {
        let dims: Vec<u64> = serde_json::from_value(fields["dims"].clone()).unwrap();
        assert_eq!(tensor.shape.dims(), dims, "{}", self.name);
        assert_eq!(u64::from(tensor.dtype.number()), fields["dtype"]);
        assert_eq!(u64::from(tensor.is_dead), fields["is_dead"]);
        assert_eq!(tensor.data.len() as u64, fields["tensor_bytes"]);
    }

    fn check_request(&self, request: &Request) {
        let header = &self.fields["header"];
        assert_eq!(request.method_number(), header["method"]);
        match request {
            Request::Unary(_) | Request::Stream(_) => unreachable!("no original sends one"),
            Request::Message { method, body } => self.check_message_request(*method, body),
            Request::RecvTensor { step_id, key } => {
                assert_eq!(*step_id, self.number("step_id"));
                assert_eq!(*key, self.text("rendezvous_key"));
            }
            Request::FuseRecvTensor { step_id, keys } => {
                assert_eq!(*step_id, self.number("step_id"));
                assert_eq!(keys[..], self.texts("rendezvous_keys"));
            }
            Request::StarRunGraph(call) => {
                assert_eq!(call.graph_handle, self.text("graph_handle"));
                assert_eq!(call.step_id, self.number("step_id") as u64);
                assert_eq!(
                    i64::from(call.ps_graph_count),
                    self.number("ps_graph_count")
                );
                assert_eq!(i64::from(call.should_trace), self.number("should_tracing"));
                assert_eq!(call.fetches[..], self.texts("fetch_names")[..]);
                let names: Vec<_> = call.feeds.iter().map(|(name, _)| name.as_str()).collect();
                assert_eq!(names, self.texts("feed_names"));
                for ((_, tensor), fields) in call
                    .feeds
                    .iter()
                    .zip(self.fields["feeds"].as_array().unwrap())
                {
                    self.check_tensor(tensor, fields);
                }
            }
        }
    }

    fn check_message_request(&self, method: Method, body: &Buffer) {
        match method {
            Method::GetStatus => assert!(body.is_empty()),
            Method::CleanupGraph => {
                let message = CleanupGraphRequest::decode(&body[..]).unwrap();
                assert_eq!(message.step_id, self.number("step_id"));
            }
            Method::RunGraph => {
                let message = RunGraphRequest::decode(&body[..]).unwrap();
                assert_eq!(message.graph_handle, self.text("graph_handle"));
                assert_eq!(message.step_id, self.number("step_id"));
                assert!(message.store_errors_in_response_body);
            }
            method => panic!("{}: {method}", self.name),
        }
    }

    fn check_result(&self, result: &Result<Response, Status>) {
        match result {
            Ok(Response::Unary(_)) => unreachable!("no original sends one"),
            Ok(Response::Tensors(tensors)) => {
                let fields = self.fields.get("tensors").map_or_else(
                    || vec![self.fields["tensor"].clone()],
                    |fields| fields.as_array().unwrap().clone(),
                );
                assert_eq!(tensors.len(), fields.len());
                for (tensor, fields) in tensors.iter().zip(&fields) {
                    self.check_tensor(tensor, fields);
                }
                if let Some(content) = self.fields.get("tensor_content_hex") {
                    let proto = TensorProto::decode(&tensors[0].data[..]).unwrap();
                    let hex: String = proto
                        .tensor_content
                        .iter()
                        .map(|byte| format!("{byte:02x}"))
                        .collect();
                    assert_eq!(*content, hex);
                }
            }
            Ok(Response::Fetched(fetched)) => {
                if self.name == "star_run_graph_response_no_fetch" {
                    assert!(fetched.is_empty());
                    return;
                }
                let names: Vec<_> = fetched.iter().map(|(name, _)| name.as_str()).collect();
                assert_eq!(names, self.texts("fetch_names"));
                for ((_, tensor), fields) in fetched
                    .iter()
                    .zip(self.fields["fetches"].as_array().unwrap())
                {
                    self.check_tensor(tensor, fields);
                }
            }
            Ok(Response::Message(body)) => self.check_message_response(body),
            Err(status) => {
                assert_eq!(status.code as i32, self.fields["header"]["status"]);
                match self.fields.get("message") {
                    Some(text) => assert_eq!(*text, status.message.as_ref()),
                    None => assert!(!status.message.is_empty()),
                }
            }
        }
    }

    fn check_message_response(&self, body: &Buffer) {
        match self.name.as_str() {
            "empty_ok_response" => assert!(body.is_empty()),
            // checklist 27
            "run_graph_response_error_in_body" => {
                let message = RunGraphResponse::decode(&body[..]).unwrap();
                assert_eq!(i64::from(message.status_code), self.number("status_code"));
                assert_eq!(
                    message.status_error_message,
                    self.text("status_error_message")
                );
            }
            "register_graph_response" => {
                let message = RegisterGraphResponse::decode(&body[..]).unwrap();
                assert_eq!(message.graph_handle, self.text("graph_handle"));
            }
            "get_status_response_one_device" => {
                let message = GetStatusResponse::decode(&body[..]).unwrap();
                let [device] = &message.device_attributes[..] else {
                    panic!("one device");
                };
                assert_eq!(device.name, self.text("name"));
                assert_eq!(device.device_type, self.text("device_type"));
                assert_eq!(device.memory_limit, self.number("memory_limit"));
                assert_eq!(
                    format!("{:#018x}", device.incarnation),
                    self.text("incarnation")
                );
            }
            name => panic!("{name}"),
        }
    }
}

/// Overwrites the tag of a frame.
fn with_tag(mut bytes: Vec<u8>, tag: [u8; 8]) -> Vec<u8> {
    bytes[8..16].copy_from_slice(&tag);
    bytes
}

/// Shows a response to a client that waits for it, in pieces.
fn to_client(vector: &Vector, piece_bytes: usize) -> (Pair, Vec<u8>) {
    let mut pair = Pair::plain();
    let tag = pair.call(vector.asked()).tag().to_le_bytes();
    let request = pair.client.drain();
    for piece in with_tag(vector.bytes(), tag).chunks(piece_bytes) {
        pair.client.offer(piece);
    }
    (pair, request)
}

fn accept_response(vector: &Vector) {
    for piece_bytes in [1, 7, usize::MAX] {
        let (mut pair, request) = to_client(vector, piece_bytes);
        assert_eq!(pair.client.violation, None, "{}", vector.name);
        let result = pair.finished().result;
        vector.check_result(&result);

        // The other direction: a server that has this answer writes these bytes.
        pair.server.offer(&with_tag(request, vector.tag()));
        if let Some(incoming) = pair.server.end.poll_request() {
            pair.server.end.answer(incoming.id, result);
        } else {
            assert_eq!(vector.name, "error_response_logging_unimplemented");
        }
        let bytes = pair.server.drain();
        assert_eq!(bytes.len(), vector.total_len, "{}", vector.name);
        assert_eq!(
            bytes == vector.bytes(),
            !DECODED_ONLY.contains(&vector.name.as_str()),
            "{}",
            vector.name
        );
    }
}

fn accept_request(vector: &Vector) {
    for piece_bytes in [1, 7, usize::MAX] {
        let mut pair = Pair::plain();
        for piece in vector.bytes().chunks(piece_bytes) {
            pair.server.offer(piece);
        }
        assert_eq!(pair.server.violation, None, "{}", vector.name);
        let request = pair.request().request;
        vector.check_request(&request);
        pair.call(request);
        let bytes = with_tag(pair.client.drain(), vector.tag());
        assert_eq!(bytes, vector.bytes(), "{}", vector.name);
    }
}

/// checklist 13
#[test]
fn every_golden_frame_is_what_it_should_be() {
    let mut counts = [0; 5];
    for vector in vectors() {
        let kind = match (vector.expect.as_str(), vector.direction.as_str()) {
            ("accept", "response") => {
                accept_response(&vector);
                0
            }
            ("accept", "request") => {
                accept_request(&vector);
                1
            }
            // Its data can be skipped, so the call fails alone.
            ("reject", "response") if vector.name == "reject_out_of_line_shape" => {
                let (mut pair, _) = to_client(&vector, usize::MAX);
                assert_eq!(pair.client.violation, None);
                let status = pair.finished().result.unwrap_err();
                assert_eq!(status.code, Code::Unimplemented);
                2
            }
            // The call fails, and the link is closed.
            ("reject", "response") => {
                for piece_bytes in [1, 7, usize::MAX] {
                    let (mut pair, _) = to_client(&vector, piece_bytes);
                    let violation = pair.client.violation.clone().expect("a violation");
                    assert!(
                        matches!(violation, PeerViolation::Record { .. }),
                        "{violation}"
                    );
                    assert!(pair.client.landings.tensors.is_empty());
                    let status = Status::new(Code::DataLoss, violation.to_string());
                    pair.client.close(&status);
                    assert_eq!(pair.finished().result, Err(status));
                }
                2
            }
            ("error_response" | "close_connection", "request") => {
                let mut pair = Pair::plain();
                pair.server.offer(&vector.bytes());
                assert_eq!(pair.server.end.poll_request(), None);
                let bytes = pair.server.drain();
                if vector.expect == "close_connection" {
                    assert!(matches!(
                        pair.server.violation,
                        Some(PeerViolation::WrongId { .. })
                    ));
                    assert!(bytes.is_empty(), "closed without a reply");
                } else {
                    assert_eq!(pair.server.violation, None);
                    assert_eq!(bytes[8..16], vector.tag());
                    assert_eq!(bytes[16..20], [12, 0, 0, 0]);
                    assert_eq!(&bytes[32..], b"method 77 is not part of star");
                }
                3
            }
            ("accept_but_never_send", "response") => {
                let (mut pair, request) = to_client(&vector, usize::MAX);
                vector.check_result(&pair.finished().result);
                pair.server.offer(&request);
                let incoming = pair.request();
                let mut status = Status::new(Code::Internal, "");
                status.message = "".into();
                pair.server.end.answer(incoming.id, Err(status));
                assert!(pair.server.drain().len() > 32);
                4
            }
            other => panic!("{}: {other:?}", vector.name),
        };
        counts[kind] += 1;
    }
    assert_eq!(counts, [18, 6, 3, 3, 1]);
}

/// A response that breaks off fails its call when the link is lost, and nothing panics.
#[test]
fn every_cut_of_every_response_ends_its_call() {
    for vector in vectors() {
        if vector.direction != "response" || vector.expect != "accept" {
            continue;
        }
        for len in 0..vector.total_len {
            let mut pair = Pair::plain();
            let tag = pair.call(vector.asked()).tag().to_le_bytes();
            pair.client.drain();
            pair.client.offer(&with_tag(vector.bytes(), tag)[..len]);
            assert_eq!(pair.client.end.poll_finished(), None, "{}", vector.name);
            let status = Status::new(Code::Unavailable, "the connection is gone");
            pair.client.close(&status);
            assert_eq!(pair.finished().result, Err(status));
            assert_eq!(pair.client.end.poll_finished(), None);
        }
    }
}

/// checklist 18: a client that disappears at any byte.
#[test]
fn every_cut_of_every_request_leaves_nothing_behind() {
    for vector in vectors() {
        if vector.direction != "request" || vector.expect != "accept" {
            continue;
        }
        for len in 0..vector.total_len {
            let mut pair = Pair::plain();
            pair.server.offer(&vector.bytes()[..len]);
            assert_eq!(pair.server.violation, None);
            assert_eq!(pair.server.end.poll_request(), None, "{}", vector.name);
            pair.server.close(&Status::new(Code::Unavailable, "gone"));
            assert_eq!(pair.server.end.outstanding_requests().count(), 0);
            assert_eq!(pair.server.end.poll_cancelled(), None);
            assert_eq!(pair.server.end.poll_undelivered(), None);
            assert!(pair.server.drain().is_empty());
        }
    }
}

/// A client whose server never closes its side drops what still comes.
#[test]
fn tensors_of_the_golden_frames_cross_together() {
    let mut pair = Pair::plain();
    for vector in vectors() {
        if vector.expect == "accept" && vector.fields.get("tensor").is_some() {
            let (mut from, _) = to_client(&vector, usize::MAX);
            let Ok(Response::Tensors(mut one)) = from.finished().result else {
                panic!("{}", vector.name);
            };
            pair.round_trip(receive(&vector.name), tensors(one.drain(..)));
        }
    }
}

#[test]
fn the_call_options_default_to_no_deadline() {
    assert_eq!(CallOptions::default().deadline, None);
}
