//! Frames that only originals send.

mod support;

use grpcxx_rpc::wire::ResponseHeader;
use grpcxx_rpc::{Code, Method, PeerViolation, Response};
use support::make::{fuse, graph, message, receive};
use support::Pair;

/// The record of bytes in `dims` dimensions, as an original has it whose shape became wide.
fn record(dims: [u32; 2]) -> Vec<u8> {
    let elements = u64::from(dims[0]) * u64::from(dims[1]);
    let mut bytes = vec![0, 4, 0, 0, 0];
    bytes.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
    bytes.extend([0, 0, 0, 0, 0xcc, 4, 2, 1]);
    bytes.extend(elements.to_le_bytes());
    bytes.extend(elements.to_le_bytes());
    bytes
}

/// The record of so many bytes in seven dimensions, with a pointer in place of them.
fn record_of_rank_seven(len: u64) -> Vec<u8> {
    let mut bytes = vec![0, 4, 0, 0, 0];
    bytes.extend(0x7fd9_6c00_1c30_u64.to_le_bytes());
    bytes.extend([0xb0, 0x40, 0x03, 0x74, 0xd9, 4, 7, 2]);
    bytes.extend(len.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes
}

/// A response whose tensors are records and data.
fn response(tag: u64, names: &[u8], records: &[(Vec<u8>, usize)]) -> Vec<u8> {
    let mut payload = names.to_vec();
    for (record, data_bytes) in records {
        payload.extend_from_slice(record);
        payload.resize(payload.len() + data_bytes, 7);
    }
    let header = ResponseHeader {
        tag,
        status: 0,
        names_bytes: i32::try_from(names.len()).unwrap(),
        payload_bytes: payload.len() as u64,
    };
    [&header.encode(), &payload[..]].concat()
}

/// Its data is skipped: other calls, before it, in its frame and behind it, go on.
#[test]
fn seven_dimensions_end_one_call_and_nothing_else() {
    const LONG_BYTES: usize = 300_000;
    for piece_bytes in [61, 4096, usize::MAX] {
        let mut pair = Pair::plain();
        let fused = pair.call(fuse(&["a", "b", "c"]));
        let other = pair.call(receive("d"));
        pair.client.drain();
        let mut bytes = response(
            fused.tag(),
            b"",
            &[
                (record([1, 9000]), 9000),
                (record_of_rank_seven(LONG_BYTES as u64), LONG_BYTES),
                (record([1, 9000]), 9000),
            ],
        );
        bytes.extend(response(other.tag(), b"", &[(record([1, 5]), 5)]));
        for piece in bytes.chunks(piece_bytes) {
            pair.client.offer(piece);
        }
        assert_eq!(pair.client.violation, None);
        let finished = pair.finished();
        assert_eq!(finished.call, fused);
        let status = finished.result.unwrap_err();
        assert_eq!(status.code, Code::Unimplemented);
        assert!(status.message.contains("tensor \"b\""), "{status}");
        let shape = format!("rank 7 with {LONG_BYTES} elements");
        assert!(status.message.contains(&shape), "{status}");
        let finished = pair.finished();
        assert_eq!(finished.call, other);
        assert!(finished.result.is_ok());
        assert!(pair.client.landings.total_bytes < LONG_BYTES);
        let ok = Ok(Response::Message(vec![].into()));
        pair.round_trip(message(Method::CleanupGraph, b""), ok);
    }
}

#[test]
fn a_fetched_tensor_of_seven_dimensions_is_named() {
    let mut pair = Pair::plain();
    let call = pair.call(graph("f", vec![], &["y", "x"]));
    pair.client.drain();
    let records = [(record([1, 5]), 5), (record_of_rank_seven(9), 9)];
    pair.client
        .offer(&response(call.tag(), b"\x01\0x\x01\0y", &records));
    assert_eq!(pair.client.violation, None);
    let status = pair.finished().result.unwrap_err();
    assert!(status.message.contains("tensor \"y\""), "{status}");
}

/// A contradiction in such a record is one all the same: its data cannot be skipped.
#[test]
fn seven_dimensions_with_another_length_close_the_link() {
    let mut pair = Pair::plain();
    let call = pair.call(receive("k"));
    pair.client.drain();
    let mut record = record_of_rank_seven(9);
    record[29] = 8;
    let bytes = response(call.tag(), b"", &[(record, 8)]);
    let violation = pair.client.offer_violation(&bytes);
    assert!(matches!(violation, PeerViolation::Record { index: 0, .. }));
}
