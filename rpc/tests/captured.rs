//! checklist 13: frames that DeepRec's own transport code sent while it ran, and frames of ours
//! that it took.
//!
//! Each is decoded to the fields that the capture states, and encoded again from what was decoded.
//! What we write in place of an original differs in nothing but the tag and the shape bytes that no
//! dimension uses: originals leave leftovers of their memory there.

use grpcxx_rpc::wire::{HEADER_BYTES, RECORD_BYTES};
use grpcxx_rpc::{Method, Request, Response, Status, Tensor};
use serde::Deserialize;
use serde_json::Value;

use crate::support::Pair;
use crate::support::make::{fuse, graph, message, receive};

#[derive(Deserialize)]
struct Capture {
    name: String,
    direction: String,
    expect: String,
    fields: Value,
    total_len: usize,
    hex: String,
}

/// Shapes that were wide before they became small: we read them, and write such a shape in its
/// small form.
const NARROWED: [&str; 2] = ["orig_server.recv_wide", "orig_server.recv_wide2"];

fn captures() -> Vec<Capture> {
    let text = include_str!("data/captured-frames.json");
    let captures: Vec<Capture> = serde_json::from_str(text).unwrap();
    assert_eq!(captures.len(), 104);
    captures
}

impl Capture {
    fn bytes(&self) -> Vec<u8> {
        let digits = |at: usize| u8::from_str_radix(&self.hex[at..at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..self.hex.len()).step_by(2).map(digits).collect();
        assert_eq!(bytes.len(), self.total_len, "{}", self.name);
        bytes
    }

    fn header(&self, field: &str) -> i64 {
        self.fields["header"][field].as_i64().unwrap()
    }

    fn texts(&self, field: &str) -> Vec<&str> {
        let values = self.fields[field].as_array();
        let texts = values.into_iter().flatten();
        texts.map(|value| value.as_str().unwrap()).collect()
    }

    /// What the capture states of the tensors of a response.
    fn tensors(&self) -> Vec<&Value> {
        match (self.fields.get("tensor"), self.fields.get("tensors")) {
            (Some(tensor), _) => vec![tensor],
            (None, Some(tensors)) => tensors.as_array().unwrap().iter().collect(),
            (None, None) => Vec::new(),
        }
    }

    /// A request that this response answers.
    fn asked(&self) -> Request {
        let names = self.texts("names");
        let keys = ["a", "b", "c", "d", "e"];
        match (self.name.as_str(), self.tensors().len()) {
            ("orig_server.srg_no_fetch", _) => graph("h", vec![], &[]),
            // Captured without a list of their tensors.
            ("our_server_ext1.18", _) => fuse(&keys),
            ("our_server_ext1.19", _) => fuse(&keys[..2]),
            _ if !names.is_empty() => graph("h", vec![], &names),
            (_, 1) => receive("k"),
            (_, 0) => message(Method::RunGraph, b""),
            (_, count) => fuse(&keys[..count]),
        }
    }

    fn check_result(&self, result: &Result<Response, Status>, body: &[u8]) {
        let stated = self.tensors();
        match result {
            Err(status) => {
                assert_eq!(status.code as i64, self.header("status"), "{}", self.name);
                assert_eq!(self.fields["message"], status.message.as_ref());
            }
            Ok(Response::Unary(_)) => unreachable!("no original sends one"),
            Ok(Response::Message(found)) => assert_eq!(found[..], *body, "{}", self.name),
            Ok(Response::Tensors(tensors)) if stated.is_empty() => assert!(!tensors.is_empty()),
            Ok(Response::Tensors(tensors)) => {
                assert_eq!(tensors.len(), stated.len());
                for (tensor, stated) in tensors.iter().zip(stated) {
                    self.check_tensor(tensor, stated);
                }
            }
            Ok(Response::Fetched(fetched)) => {
                let names: Vec<_> = fetched.iter().map(|(name, _)| name.as_str()).collect();
                assert_eq!(names, self.texts("names"));
                assert_eq!(fetched.len(), stated.len());
                for ((_, tensor), stated) in fetched.iter().zip(stated) {
                    self.check_tensor(tensor, stated);
                }
            }
        }
        if result.is_ok() {
            assert_eq!(self.header("status"), 0, "{}", self.name);
        }
    }

    fn check_tensor(&self, tensor: &Tensor, stated: &Value) {
        let dims: Vec<u64> = serde_json::from_value(stated["dims"].clone()).unwrap();
        assert_eq!(tensor.shape.dims(), dims, "{}", self.name);
        assert_eq!(tensor.shape.num_elements(), stated["num_elements"]);
        assert_eq!(u64::from(tensor.dtype.number()), stated["dtype"]);
        assert_eq!(u64::from(tensor.is_dead), stated["is_dead"]);
        assert_eq!(tensor.data.len() as u64, stated["tensor_bytes"]);
    }

    /// Checks that `ours` is this frame, apart from the tag and from shape bytes that no dimension
    /// uses in the records that begin at `records_from`.
    fn check_encoded(&self, ours: &[u8], records_from: Option<usize>) {
        let theirs = self.bytes();
        assert_eq!(ours.len(), theirs.len(), "{}", self.name);
        let unused = records_from.map_or_else(Vec::new, |from| unused_shape_bytes(&theirs, from));
        for (at, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            if unused.contains(&at) {
                assert_eq!(*ours, 0, "{}: byte {at}", self.name);
            } else if !TAG.contains(&at) {
                assert_eq!(ours, theirs, "{}: byte {at}", self.name);
            }
        }
    }
}

/// Offsets of the shape bytes beyond the rank, in records up to the end of the frame.
fn unused_shape_bytes(frame: &[u8], mut record: usize) -> Vec<usize> {
    let mut unused = Vec::new();
    while record < frame.len() {
        let shape = record + 5;
        let (rank, form) = (usize::from(frame[shape + 14]), frame[shape + 15]);
        let width = if form == 0 { 2 } else { 4 };
        unused.extend(shape + rank * width..shape + 13);
        let data: [u8; 8] = frame[record + 29..record + RECORD_BYTES]
            .try_into()
            .unwrap();
        record += RECORD_BYTES + usize::try_from(u64::from_le_bytes(data)).unwrap();
    }
    assert_eq!(record, frame.len(), "records fill the frame");
    unused
}

/// Shows a response, in pieces, to a client that has asked for it.
fn to_client(capture: &Capture, piece_bytes: usize) -> (Pair, Vec<u8>) {
    let mut pair = Pair::plain();
    let tag = pair.call(capture.asked()).tag();
    let request = pair.client.drain();
    let mut bytes = capture.bytes();
    bytes[TAG].copy_from_slice(&tag.to_le_bytes());
    for piece in bytes.chunks(piece_bytes) {
        pair.client.offer(piece);
    }
    assert_eq!(pair.client.violation, None, "{}", capture.name);
    (pair, request)
}

#[test]
fn what_servers_sent_is_decoded_and_would_be_sent_by_us() {
    let mut checked = 0;
    for capture in captures() {
        if capture.direction != "response" || capture.expect != "accept" {
            continue;
        }
        checked += 1;
        for piece_bytes in [1, 7, usize::MAX] {
            let (mut pair, request) = to_client(&capture, piece_bytes);
            let result = pair.finished().result;
            capture.check_result(&result, &capture.bytes()[HEADER_BYTES..]);

            let names_bytes = usize::try_from(capture.header("user_data")).unwrap();
            let has_records = !matches!(result, Err(_) | Ok(Response::Message(_)));
            let records_from = has_records.then_some(HEADER_BYTES + names_bytes);
            pair.server.offer(&request);
            let incoming = pair.request();
            pair.server.end.answer(incoming.id, result);
            let ours = pair.server.drain();
            if NARROWED.contains(&capture.name.as_str()) {
                assert_ne!(
                    ours[HEADER_BYTES + 5 + 15],
                    capture.bytes()[HEADER_BYTES + 5 + 15]
                );
            } else {
                capture.check_encoded(&ours, records_from);
            }
        }
    }
    assert_eq!(checked, 84);
}

#[test]
fn what_clients_sent_is_decoded_and_would_be_sent_by_us() {
    let mut checked = 0;
    for capture in captures() {
        if capture.direction != "request" {
            continue;
        }
        checked += 1;
        let bytes = capture.bytes();
        let method = i32::try_from(capture.header("method")).unwrap();
        let metadata_bytes = usize::try_from(capture.header("user_data")).unwrap();
        for piece_bytes in [1, 7, usize::MAX] {
            let mut pair = Pair::plain();
            for piece in bytes.chunks(piece_bytes) {
                pair.server.offer(piece);
            }
            assert_eq!(pair.server.violation, None, "{}", capture.name);
            let request = match Method::from_number(method).unwrap() {
                // Answered by the connection itself, as an original answers them.
                method @ (Method::Logging | Method::Tracing) => {
                    let answer = pair.server.drain();
                    assert_eq!(answer[16], 12, "UNIMPLEMENTED");
                    assert_eq!(answer[HEADER_BYTES..], *method.to_string().as_bytes());
                    message(method, &bytes[HEADER_BYTES..])
                }
                _ => pair.request().request,
            };
            assert_eq!(request.method_number(), method);
            if let Request::Message { body, .. } = &request {
                assert_eq!(body[..], bytes[HEADER_BYTES..], "{}", capture.name);
            }
            let is_graph = matches!(request, Request::StarRunGraph(_));
            pair.call(request);
            let records_from = is_graph.then_some(HEADER_BYTES + metadata_bytes);
            capture.check_encoded(&pair.client.drain(), records_from);
        }
    }
    assert_eq!(checked, 19);
}

/// An original sends a pointer in place of seven dimensions. Nobody can know them, and the call
/// fails alone.
#[test]
fn a_tensor_whose_dimensions_stayed_with_an_original_fails_its_call() {
    let mut captures = captures();
    captures.retain(|capture| capture.expect == "reject");
    let [capture] = &captures[..] else {
        panic!("one frame is rejected");
    };
    for piece_bytes in [1, 7, usize::MAX] {
        let (mut pair, _) = to_client(capture, piece_bytes);
        let status = pair.finished().result.unwrap_err();
        assert_eq!(
            status.to_string(),
            "UNIMPLEMENTED: tensor \"k\" cannot cross the star protocol: the dimensions of a \
             float32 tensor of rank 7 with \
             2 elements did not travel: the sender keeps them out of line; reshape it before it is \
             sent"
        );
        assert!(pair.client.landings.tensors.is_empty());
    }
}

const TAG: std::ops::Range<usize> = 8..16;
