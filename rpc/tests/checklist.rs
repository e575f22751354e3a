//! The points of the conformance checklist that concern frames and connections and have no test
//! elsewhere.

use grpcxx_memory::Buffer;
use grpcxx_rpc::proto::{RunGraphRequest, RunGraphResponse};
use grpcxx_rpc::wire::{HEADER_BYTES, RequestHeader, ResponseHeader};
use grpcxx_rpc::{
    ClientConnection, Code, ConnectionLimits, DType, Features, Method, PeerViolation, Reason,
    Request, Response, Shape, Status, Tensor,
};
use grpcxx_transport::Outcome;
use prost::Message;

use crate::support;
use crate::support::make::{self, floats, fuse, graph, message, named, receive};
use crate::support::original::Expected;
use crate::support::{OriginalClient, Pair, Port, tensors};

/// One request of each method that a client may send.
fn requests() -> Vec<Request> {
    let mut requests: Vec<Request> = [
        Method::GetStatus,
        Method::CreateWorkerSession,
        Method::DeleteWorkerSession,
        Method::RegisterGraph,
        Method::DeregisterGraph,
        Method::RunGraph,
        Method::CleanupGraph,
        Method::CleanupAll,
    ]
    .into_iter()
    .map(|method| message(method, b""))
    .collect();
    requests.push(receive("k"));
    requests.push(fuse(&["a", "b"]));
    requests.push(graph("f", vec![], &["y", "x"]));
    requests
}

fn expected(request: &Request) -> Expected {
    match request {
        Request::Unary(_) | Request::Stream(_) => unreachable!("no original sends one"),
        Request::Message { .. } => Expected::Message,
        Request::RecvTensor { .. } => Expected::Tensors(1),
        Request::FuseRecvTensor { keys, .. } => Expected::Tensors(keys.len()),
        Request::StarRunGraph(call) => Expected::Fetched(call.fetches.len()),
    }
}

/// checklist 01: the server echoes any tag, and its method field is 0 (checked by the plain
/// client).
#[test]
fn tags_come_back_bit_exact() {
    let mut pair = Pair::plain();
    let mut client = OriginalClient::default();
    let tags = [0, 1, u64::MAX, 0x7fff_dead_beef_0001, 1 << 63];
    for tag in tags {
        let bytes = client.request(8, tag, b"", Expected::Message);
        pair.server.offer(&bytes);
    }
    for _ in tags {
        let incoming = pair.request();
        let ok = Ok(Response::Message(Buffer::new()));
        pair.server.end.answer(incoming.id, ok);
    }
    let answered: Vec<u64> = client
        .take(&pair.server.drain())
        .iter()
        .map(|response| response.tag)
        .collect();
    assert_eq!(answered, tags);
}

/// checklist 01: an original's tags are addresses, and one is in use again as soon as its response
/// is there.
#[test]
fn a_tag_is_free_again_once_its_answer_is_on_its_way() {
    let mut pair = Pair::new(Features::NONE, Features::ALL);
    let mut client = OriginalClient::default();
    let mut at_link = Vec::new();
    for _ in 0..3 {
        pair.server
            .offer(&client.request(8, 0x7fff_0000, b"", Expected::Message));
        assert_eq!(pair.server.violation, None);
        let incoming = pair.request();
        let ok = Ok(Response::Message(Buffer::new()));
        assert!(pair.server.end.answer(incoming.id, ok));
        let frame = pair.server.end.poll_frame().unwrap();
        client.take(&support::driver::frame_bytes(&frame));
        at_link.push(frame);
    }
    for frame in at_link {
        pair.server.end.handle_sent(frame, Outcome::Done);
    }
    assert!(client.is_idle());
}

/// checklist 02
#[test]
fn nothing_precedes_the_first_request_header() {
    for features in [Features::NONE, Features::ALL] {
        let mut pair = Pair::new(features, features);
        assert!(pair.server.drain().is_empty());
        pair.call(receive("k"));
        assert_eq!(pair.client.drain()[..4], *b"AAAA");
    }
}

/// checklist 03
#[test]
fn all_numbers_are_those_of_the_table_and_unsupported_ones_are_answered() {
    let names = [
        "GetStatus",
        "GetTopologyStatus",
        "CreateWorkerSession",
        "DeleteWorkerSession",
        "RegisterGraph",
        "DeregisterGraph",
        "RunGraph",
        "StarRunGraph",
        "CleanupGraph",
        "CleanupAll",
        "RecvTensor",
        "FuseRecvTensor",
        "Logging",
        "Tracing",
        "RecvBuf",
        "CompleteGroup",
        "CompleteInstance",
        "GetStepSequence",
    ];
    let table: Vec<_> = (0..18)
        .map(|number| Method::from_number(number).unwrap().name())
        .collect();
    assert_eq!(table, names);
    assert_eq!(Method::from_number(18), None);
    assert_eq!(Method::from_number(100), None);

    let mut pair = Pair::plain();
    let mut client = OriginalClient::default();
    for (tag, number) in [1, 12, 13, 14, 15, 16, 17, 18, 99, 100, -1, i32::MAX]
        .into_iter()
        .enumerate()
    {
        // With a body, which has to be skipped.
        let body = vec![b'A'; 50 * tag];
        pair.server
            .offer(&client.request(number, tag as u64, &body, Expected::Message));
        assert_eq!(pair.server.end.poll_request(), None, "{number}");
        let [response] = &client.take(&pair.server.drain())[..] else {
            panic!("one response");
        };
        assert_eq!(response.status, 12);
        match number {
            12 => assert_eq!(response.payload, b"Logging"),
            13 => assert_eq!(response.payload, b"Tracing"),
            1 | 14..=17 => {
                let text = format!("{} is not served over star", names[number as usize]);
                assert_eq!(response.payload, text.as_bytes());
            }
            number => {
                let text = format!("method {number} is not part of star");
                assert_eq!(response.payload, text.as_bytes());
            }
        }
    }
    pair.round_trip(receive("after"), tensors([floats(&[1.0])]));
}

/// checklist 04: the plain peers parse by payload_len alone, so a wrong one breaks the next frame.
#[test]
fn payload_lengths_are_exact() {
    let mut pair = Pair::plain();
    let mut client = OriginalClient::default();
    for request in requests() {
        pair.call(request.clone());
        let bytes = pair.client.drain();
        let header = RequestHeader::decode(bytes.first_chunk().unwrap()).unwrap();
        assert_eq!(header.payload_bytes as usize, bytes.len() - HEADER_BYTES);
        if let Request::Message { .. } = request {
            assert_eq!(
                bytes.len(),
                HEADER_BYTES,
                "an empty message is a header alone"
            );
        }
        // The plain client has to know what it waits for.
        client.request(header.method, header.tag, b"", expected(&request));
        pair.server.offer(&bytes);
        let incoming = pair.request();
        let response = match &request {
            Request::Unary(_) | Request::Stream(_) => unreachable!("no original sends one"),
            Request::Message { .. } => Response::Message(Buffer::new()),
            Request::RecvTensor { .. } => Response::from(floats(&[1.0])),
            Request::FuseRecvTensor { .. } => Response::Tensors(
                [Tensor::dead(), make::bytes_tensor(3000, 1)]
                    .into_iter()
                    .collect(),
            ),
            Request::StarRunGraph(_) => Response::Fetched(named(vec![
                ("y", make::bytes_tensor(3000, 1)),
                ("x", floats(&[])),
            ])),
        };
        pair.server.end.answer(incoming.id, Ok(response));
    }
    assert_eq!(client.take(&pair.server.drain()).len(), requests().len());
    assert!(client.is_idle());
}

/// checklist 05
#[test]
fn every_method_fails_with_the_same_frame() {
    let mut pair = Pair::plain();
    for request in requests() {
        pair.call(request);
        pair.carry_requests();
        let incoming = pair.request();
        let status = Status::new(Code::Aborted, "[_Derived_]Step 7 aborted");
        pair.server.end.answer(incoming.id, Err(status.clone()));
        let bytes = pair.server.drain();
        let header = ResponseHeader::decode(bytes.first_chunk().unwrap()).unwrap();
        assert_eq!(header.status, 10);
        assert_eq!(header.names_bytes, 0);
        assert_eq!(header.payload_bytes, 25);
        assert_eq!(&bytes[HEADER_BYTES..], b"[_Derived_]Step 7 aborted");
        pair.client.offer(&bytes);
        let arrived = pair.finished().result.unwrap_err();
        assert_eq!(arrived, status.because(Reason::Peer));
    }
}

/// checklist 05: texts that are too long are cut at a character, texts that are not UTF-8 are kept
/// as far as they are.
#[test]
fn error_texts_of_any_kind_arrive() {
    let limits = ConnectionLimits::default().with(|limits| limits.error_text_bytes = 10);
    let mut pair = Pair::with_limits(limits, Features::NONE, Features::NONE);
    pair.call(receive("k"));
    pair.carry_requests();
    let incoming = pair.request();
    let status = Status::new(Code::Internal, "123456789äöü");
    pair.server.end.answer(incoming.id, Err(status));
    pair.carry_responses();
    assert_eq!(pair.finished().result.unwrap_err().message, "123456789");

    let respond = |pair: &mut Pair, status: i32, text: &[u8]| {
        let tag = pair.call(receive("k")).tag();
        pair.client.drain();
        for piece in support::original::response(tag, status, text).chunks(9) {
            pair.client.offer(piece);
        }
        pair.finished().result.unwrap_err()
    };
    let status = respond(&mut pair, 13, b"12345678901");
    assert_eq!(status.code, Code::Internal);
    assert_eq!(
        status.message,
        "the peer's reason has 11 bytes, which is too long to keep"
    );
    let status = respond(&mut pair, 5, b"\xffbad");
    let not_found = Status::new(Code::NotFound, "\u{fffd}bad");
    assert_eq!(status, not_found.because(Reason::Peer));
    let status = respond(&mut pair, 77, b"new");
    let unknown = Status::new(Code::Unknown, "status code 77: new");
    assert_eq!(status, unknown.because(Reason::Peer));
    let status = respond(&mut pair, -3, b"");
    assert_eq!(status.code, Code::Unknown);
}

/// checklist 07
#[test]
fn the_payload_length_of_a_tensor_response_is_not_trusted() {
    for wrong in [0u64, 1, 36, u64::MAX] {
        let mut pair = Pair::plain();
        for request in [receive("k"), fuse(&["a", "b"])] {
            pair.call(request.clone());
            pair.carry_requests();
            let incoming = pair.request();
            let count = match expected(&request) {
                Expected::Tensors(count) => count,
                other => panic!("{other:?}"),
            };
            let answer = tensors((0..count).map(|i| make::bytes_tensor(1000, i as u8)));
            pair.server.end.answer(incoming.id, answer.clone());
            let mut bytes = pair.server.drain();
            let ours = u64::from_le_bytes(*bytes[24..].first_chunk().unwrap());
            assert_eq!(ours, count as u64 * (37 + 1000));
            bytes[24..32].copy_from_slice(&wrong.to_le_bytes());
            pair.client.offer(&bytes);
            assert_eq!(pair.finished().result, answer);
        }
    }
}

/// checklist 08 and checklist 28: order of the keys, dead members, one error for all.
#[test]
fn fused_tensors_come_in_the_order_of_their_keys() {
    let mut pair = Pair::plain();
    let keys: Vec<String> = (0..300).map(|i| format!("key {i}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let answer = tensors((0..300).map(|i| match i % 3 {
        0 => Tensor::dead(),
        1 => floats(&[i as f32]),
        _ => make::bytes_tensor(i * 10, i as u8),
    }));
    pair.round_trip(fuse(&keys), answer);
    let failure = Err(Status::new(Code::Aborted, "one key failed"));
    pair.round_trip(fuse(&keys), failure);
}

/// checklist 09
#[test]
fn a_graph_response_is_sorted_by_name() {
    let mut pair = Pair::plain();
    pair.call(graph("f", vec![], &["b", "", "a\u{e4}", "a"]));
    pair.carry_requests();
    let incoming = pair.request();
    let answer = named(vec![
        ("a\u{e4}", floats(&[3.0])),
        ("b", floats(&[4.0])),
        ("a", floats(&[2.0])),
        ("", floats(&[1.0])),
    ]);
    pair.server
        .end
        .answer(incoming.id, Ok(Response::Fetched(answer)));
    let bytes = pair.server.drain();
    let names = b"\0\0\x01\0a\x03\0a\xc3\xa4\x01\0b";
    assert_eq!(bytes[20..24], (names.len() as i32).to_le_bytes());
    assert_eq!(&bytes[32..32 + names.len()], names);
    for (i, value) in [1.0f32, 2.0, 3.0, 4.0].into_iter().enumerate() {
        let at = 32 + names.len() + i * 41 + 37;
        assert_eq!(bytes[at..at + 4], value.to_le_bytes());
    }
}

/// checklist 09: the server reads metadata by user_data and then one record per feed, whatever
/// payload_len says.
#[test]
fn the_payload_length_of_a_graph_request_is_not_trusted() {
    for wrong in [0u64, 5, 1 << 20] {
        let mut pair = Pair::plain();
        let request = graph("f", vec![("x", floats(&[1.0, 2.0]))], &["y"]);
        pair.call(request.clone());
        let mut bytes = pair.client.drain();
        bytes[24..32].copy_from_slice(&wrong.to_le_bytes());
        pair.server.offer(&bytes);
        assert_eq!(pair.request().request, request);
    }
}

/// checklist 09: names that are not those asked for fail the call and nothing else.
#[test]
fn a_graph_response_with_other_names_fails_its_call() {
    let texts = [
        ("y", "the peer returned \"y\", which was not asked for"),
        ("a", "the peer did not return \"b\""),
    ];
    for (name, text) in texts {
        let mut pair = Pair::plain();
        pair.call(graph("f", vec![], &[name]));
        pair.carry_requests();
        let incoming = pair.request();
        let answer = named(vec![(name, make::bytes_tensor(9000, 1))]);
        pair.server
            .end
            .answer(incoming.id, Ok(Response::Fetched(answer)));
        let mut bytes = pair.server.drain();

        let tag = pair.call(graph("f", vec![], &["a", "b"])).tag();
        pair.client.drain();
        bytes[8..16].copy_from_slice(&tag.to_le_bytes());
        pair.client.offer(&bytes);
        let status = pair.finished().result.unwrap_err();
        assert_eq!(status, Status::new(Code::Internal, text));
        assert!(pair.client.landings.tensors.is_empty());
    }
}

/// checklist 10
#[test]
fn records_of_every_kind_cross() {
    let mut pair = Pair::plain();
    let mut send = |dtype: DType, dims: &[u64], data: Vec<u8>| {
        let shape = Shape::new(dims).unwrap();
        let tensor = Tensor::new(dtype, shape, data).unwrap();
        pair.round_trip(receive("k"), tensors([tensor]));
    };
    for rank in 0..=6 {
        let dims = &[2, 1, 3, 1, 2, 1][..rank];
        let len = dims.iter().product::<u64>() as usize;
        send(DType::Bool, dims, vec![1; len]);
        send(DType::Float16, dims, vec![7; 2 * len]);
        send(DType::BFloat16, dims, vec![7; 2 * len]);
    }
    send(DType::Int8, &[70_000], vec![1; 70_000]);
    send(DType::Int8, &[1, 70_000, 1], vec![1; 70_000]);
    send(DType::Int8, &[0, 70_000], vec![]);
    send(
        DType::String,
        &[0],
        b"\x08\x07\x12\x04\x12\x02\x08\x00".to_vec(),
    );
    send(DType::String, &[], b"\x08\x07\x22\x03\x02ab".to_vec());
    send(DType::Variant, &[3], vec![9; 10_000]);
}

/// checklist 11: a shape that the protocol cannot carry is refused by the side that has it; what
/// arrives with one fails alone.
#[test]
fn a_shape_out_of_line_is_neither_sent_nor_taken() {
    let mut pair = Pair::plain();
    let dims = [1, 1, 1, 1, 1, 1, 1];
    let wide = Tensor::new(DType::Int8, Shape::new(&dims).unwrap(), vec![1]).unwrap();
    pair.call(receive("k"));
    pair.carry_requests();
    let incoming = pair.request();
    pair.server.end.answer(incoming.id, tensors([wide]));
    pair.carry_responses();
    let status = pair.finished().result.unwrap_err();
    assert_eq!(status.code, Code::Unimplemented);
    assert!(status.message.contains("[1, 1, 1, 1, 1, 1, 1]"), "{status}");

    pair.call(graph("f", vec![("x", floats(&[1.0]))], &[]));
    let mut bytes = pair.client.drain();
    let at = bytes.len() - 4 - 37 + 5 + 15;
    bytes[at] = 2;
    pair.server.offer(&bytes);
    assert_eq!(pair.server.violation, None);
    assert_eq!(pair.server.end.poll_request(), None);
    pair.carry_responses();
    let status = pair.finished().result.unwrap_err();
    assert_eq!(status.code, Code::Unimplemented);
    assert!(
        status.message.starts_with("tensor \"x\" cannot cross"),
        "{status}"
    );
    bytes[at] = 3;
    assert_eq!(
        Pair::plain().server.offer_violation(&bytes).to_string(),
        "tensor record 0: the shape has the form 3, allowed are 0 (16-bit), 1 (32-bit) and 2 (out \
         of line)"
    );
}

/// checklist 12: the same memory eight times is 4 GiB, and takes 512 MiB that nobody touches.
#[test]
fn a_frame_of_four_gibibytes_is_not_sent() {
    let half: Buffer = vec![0; 1 << 29].into();
    let shape = Shape::new(&[1 << 29]).unwrap();
    let tensor = Tensor::new(DType::UInt8, shape, half).unwrap();
    let mut pair = Pair::plain();
    let keys = ["a", "b", "c", "d", "e", "f", "g", "h"];
    pair.call(fuse(&keys));
    pair.carry_requests();
    let incoming = pair.request();
    pair.server
        .end
        .answer(incoming.id, tensors(keys.map(|_| tensor.clone())));
    pair.carry_responses();
    let status = pair.finished().result.unwrap_err();
    assert_eq!(status.code, Code::ResourceExhausted);
    assert_eq!(
        status.message,
        "a frame of 4294967624 bytes cannot be sent, allowed are 4294967295"
    );

    let feeds = keys.map(|name| (name, tensor.clone())).to_vec();
    pair.call(graph("f", feeds, &[]));
    let status = pair.finished().result.unwrap_err();
    assert_eq!(status.code, Code::ResourceExhausted);
    assert!(pair.client.drain().is_empty());
}

/// checklist 17: what comes for a call of an earlier connection is not taken for one of this
/// connection.
#[test]
fn responses_to_nothing_close_the_link() {
    let unknown = |pair: &mut Pair, tag: u64| {
        let bytes = support::original::response(tag, 0, b"");
        let violation = pair.client.offer_violation(&bytes);
        assert_eq!(violation, PeerViolation::UnknownTag { found: tag });
    };
    unknown(&mut Pair::plain(), 0);
    unknown(&mut Pair::plain(), 0x1122_3344_5566_7788);

    // A second response.
    let mut pair = Pair::plain();
    let tag = pair.call(message(Method::CleanupGraph, b"")).tag();
    pair.client.drain();
    pair.client.offer(&support::original::response(tag, 0, b""));
    assert!(pair.finished().result.is_ok());
    unknown(&mut pair, tag);

    // A response before its request.
    let mut pair = Pair::plain();
    let tag = pair.call(receive("k")).tag();
    unknown(&mut pair, tag);

    // The slot is in use again, by a later call.
    let mut pair = Pair::plain();
    let old = pair.call(message(Method::CleanupGraph, b"")).tag();
    pair.client.drain();
    pair.client.offer(&support::original::response(old, 0, b""));
    let new = pair.call(message(Method::CleanupGraph, b"")).tag();
    assert_eq!(old as u32, new as u32);
    pair.client.drain();
    unknown(&mut pair, old);
}

/// checklist 18: a server that never closes its side holds nothing that a fresh connection needs.
#[test]
fn a_fresh_connection_does_not_wait_for_the_old_one() {
    let mut pair = Pair::plain();
    pair.call(receive("k"));
    pair.carry_requests();
    let asked = pair.request().id;
    let status = Status::new(Code::Unavailable, "the link failed");
    pair.client.close(&status);
    assert_eq!(pair.finished().result, Err(status));
    let fresh = ClientConnection::new(ConnectionLimits::default(), Features::NONE);
    pair.client = Port::new(fresh);
    let server = Pair::plain().server;
    let old = std::mem::replace(&mut pair.server, server);
    pair.round_trip(receive("k"), tensors([floats(&[1.0])]));
    assert!(old.end.outstanding_requests().eq([asked]));
}

/// checklist 27: a failed step arrives as a success that carries the failure.
#[test]
fn a_failure_in_the_body_passes_untouched() {
    let asked = RunGraphRequest {
        graph_handle: "h".into(),
        store_errors_in_response_body: true,
        ..Default::default()
    };
    let answered = RunGraphResponse {
        status_code: Code::Aborted as i32,
        status_error_message: "step aborted".into(),
        ..Default::default()
    };
    let mut pair = Pair::plain();
    pair.round_trip(
        message(Method::RunGraph, &asked.encode_to_vec()),
        Ok(Response::Message(answered.encode_to_vec().into())),
    );
}

#[test]
fn headers_beyond_the_limits_close_the_link() {
    let mut client = OriginalClient::default();
    let mut frame = client.request(6, 1, b"", Expected::Message);
    frame[24..32].copy_from_slice(&((1u64 << 36) - 31).to_le_bytes());
    assert_eq!(
        Pair::plain().server.offer_violation(&frame).to_string(),
        "the payload of a request is 68719476705 bytes, allowed are 0 to 68719476704"
    );
    let mut frame = client.request(7, 1, b"", Expected::Fetched(0));
    frame[20..24].copy_from_slice(&(-1i32).to_le_bytes());
    assert_eq!(
        Pair::plain().server.offer_violation(&frame).to_string(),
        "graph metadata is -1 bytes, allowed are 0 to 67108864"
    );
    let twice = client.request(8, 9, b"", Expected::Message).repeat(2);
    assert_eq!(
        Pair::plain().server.offer_violation(&twice).to_string(),
        "request header: tag 0x0000000000000009 belongs to an outstanding request, allowed is an \
         unused one"
    );

    let mut pair = Pair::plain();
    let tag = pair.call(message(Method::RunGraph, b"")).tag();
    pair.client.drain();
    let mut frame = support::original::response(tag, 0, b"");
    frame[24..32].fill(0xff);
    assert_eq!(
        pair.client.offer_violation(&frame).to_string(),
        "a message is 18446744073709551615 bytes, allowed are 0 to 68719476704"
    );
    let mut pair = Pair::plain();
    let tag = pair.call(graph("f", vec![], &["y"])).tag();
    pair.client.drain();
    let mut frame = support::original::response(tag, 0, b"");
    frame[20..24].copy_from_slice(&i32::MAX.to_le_bytes());
    assert_eq!(
        pair.client.offer_violation(&frame).to_string(),
        "the names of a response is 2147483647 bytes, allowed are 0 to 67108864"
    );
}

/// What is behind names or text without memory is dropped, and a peer does not say without limit
/// how much that is.
#[test]
fn a_frame_without_memory_is_dropped_within_the_limits() {
    for piece_bytes_max in [3, 60] {
        let mut pair = Pair::plain();
        pair.client.landings.window_bytes = Some(4);
        pair.client.landings.piece_bytes_max = piece_bytes_max;
        let tag = pair.call(graph("f", vec![], &["y"])).tag();
        pair.client.drain();
        let mut frame = support::original::response(tag, 0, &[0; 90]);
        frame[20..24].copy_from_slice(&100_i32.to_le_bytes());
        frame[24..32].fill(0xff);
        for byte in frame {
            pair.client.offer(&[byte]);
        }
        assert_eq!(
            pair.client.offer_violation(&[]).to_string(),
            "a frame that there is no memory for is 18446744073709551615 bytes, \
             allowed are 0 to 68719476704"
        );
    }
}

/// checklist 12: the tensors of a frame count together, and each is checked before its memory is
/// asked for.
#[test]
fn a_frame_that_its_tensors_make_too_long_closes_the_link() {
    let record = |dims: [u32; 2]| {
        let elements = u64::from(dims[0]) * u64::from(dims[1]);
        let mut bytes = vec![0, 4, 0, 0, 0];
        bytes.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        bytes.extend([0, 0, 0, 0, 0, 4, 2, 1]);
        bytes.extend(elements.to_le_bytes());
        bytes.extend(elements.to_le_bytes());
        bytes
    };
    let mut pair = Pair::plain();
    let tag = pair.call(receive("k")).tag();
    pair.client.drain();
    let mut frame = support::original::response(tag, 0, b"");
    frame.extend(record([700_000, 100_000]));
    assert_eq!(
        pair.client.offer_violation(&frame).to_string(),
        "a frame with its tensors is 70000000069 bytes, allowed are 0 to 68719476736"
    );
    assert_eq!(pair.client.landings.pieces, 0);

    let limits = ConnectionLimits::default().with(|limits| limits.frame_bytes = 1000);
    let mut pair = Pair::with_limits(limits, Features::NONE, Features::NONE);
    let tag = pair.call(fuse(&["a", "b"])).tag();
    pair.client.drain();
    let mut frame = support::original::response(tag, 0, b"");
    frame.extend(record([1, 500]));
    frame.extend([0; 500]);
    frame.extend(record([1, 500]));
    assert_eq!(
        pair.client.offer_violation(&frame).to_string(),
        "a frame with its tensors is 1106 bytes, allowed are 0 to 1000"
    );
}

/// What follows dropped payload is read as soon as it is there, even if it is a header alone.
#[test]
fn a_lone_header_behind_dropped_payload_is_read() {
    let mut pair = Pair::plain();
    pair.client.landings.piece_bytes_max = 10;
    for request in [receive("k"), fuse(&["a", "b"])] {
        let Expected::Tensors(count) = expected(&request) else {
            panic!("tensors");
        };
        pair.call(request);
        pair.carry_requests();
        let incoming = pair.request();
        let answer = tensors((0..count).map(|_| make::bytes_tensor(1000, 1)));
        pair.server.end.answer(incoming.id, answer);
        pair.call(message(Method::CleanupGraph, b""));
        pair.carry_requests();
        let incoming = pair.request();
        let ok = Ok(Response::Message(Buffer::new()));
        pair.server.end.answer(incoming.id, ok.clone());
        for piece in pair.server.drain().chunks(100) {
            pair.client.offer(piece);
        }
        assert!(pair.finished().result.is_err());
        assert_eq!(pair.finished().result, ok);
    }
}

/// A message beyond the limit is skipped on both sides, before any memory is asked for.
#[test]
fn messages_beyond_the_limit_fail_their_call() {
    let limits = ConnectionLimits::default().with(|limits| limits.message_bytes = 100);
    for limited_client in [true, false] {
        let mut pair = Pair::plain();
        if limited_client {
            pair.client = Port::new(ClientConnection::new(limits, Features::NONE));
        } else {
            let server = Pair::with_limits(limits, Features::NONE, Features::NONE).server;
            pair.server = server;
        }
        let body = if limited_client { 0 } else { 101 };
        pair.call(message(Method::RunGraph, &vec![0; body]));
        pair.carry_requests();
        if limited_client {
            let incoming = pair.request();
            let response = Response::Message(vec![0; 101].into());
            pair.server.end.answer(incoming.id, Ok(response));
        }
        pair.carry_responses();
        let status = pair.finished().result.unwrap_err();
        assert_eq!(
            status,
            Status::new(
                Code::ResourceExhausted,
                "the peer sent a message of 101 bytes, allowed are 100"
            )
            .because(if limited_client {
                Reason::Limit
            } else {
                Reason::Peer
            })
        );
        // Not even for the text of the failure, which is whole in the bytes shown.
        assert_eq!(pair.client.landings.pieces + pair.server.landings.pieces, 0);
        pair.round_trip(
            message(Method::RunGraph, &[0; 100]),
            Ok(Response::Message(Buffer::new())),
        );
    }
}

/// Requests that cannot be understood are answered, and the next one is read.
#[test]
fn malformed_requests_are_answered_and_skipped() {
    let mut pair = Pair::plain();
    let mut client = OriginalClient::default();
    let mut metadata = client.request(7, 3, &[0xff; 600], Expected::Fetched(0));
    metadata[20..24].copy_from_slice(&500i32.to_le_bytes());
    let frames = [
        client.request(10, 1, b"", Expected::Tensors(1)),
        client.request(11, 2, b"\x08\x01", Expected::Tensors(1)),
        metadata,
        client.request(7, 4, &[1; 40], Expected::Fetched(0)),
        client.request(0, 5, b"\xff", Expected::Message),
    ];
    for frame in frames {
        pair.server.offer(&frame);
    }
    assert_eq!(pair.server.violation, None);
    assert_eq!(pair.server.end.poll_request(), None);
    let texts: Vec<_> = client
        .take(&pair.server.drain())
        .into_iter()
        .map(|response| {
            assert_eq!(response.status, 3);
            String::from_utf8(response.payload).unwrap()
        })
        .collect();
    assert_eq!(
        texts,
        [
            "RecvTensorRequest, byte 0: rendezvous_key is missing",
            "FuseRecvTensorRequest, byte 2: rendezvous_key is missing",
            "graph metadata, byte 0: the number of feeds is -1, allowed are 0 to 32767",
            "graph metadata, byte 0: the number of feeds needs 4 bytes, 0 are left",
            "GetStatus message, byte 0: a field key needs 2 bytes, 1 are left",
        ]
    );
    pair.round_trip(receive("after"), tensors([floats(&[1.0])]));
}
