//! Frames that only originals send, and what we never send to them.

use grpcxx_memory::BufferMut;
use grpcxx_rpc::wire::{HEADER_BYTES, RequestHeader, ResponseHeader};
use grpcxx_rpc::{
    CallOptions, ClientConnection, Code, ConnectionLimits, Features, ImmediateHit, Landings,
    Method, PeerViolation, Request, Response, ServerConnection, Status, TensorMeta, Text,
};
use grpcxx_transport::{Next, Time};

use crate::support::make::{floats, fuse, graph, message, named, receive};
use crate::support::{Pair, tensors};

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

/// Memory that nobody touches, so that 4 GiB take none.
#[derive(Default)]
struct Untouched {
    handed_out: u64,
}

impl Landings for Untouched {
    fn tensor(
        &mut self,
        _: u64,
        _: usize,
        meta: &TensorMeta,
        _: usize,
    ) -> Result<BufferMut, Status> {
        self.handed_out += meta.data_bytes;
        Ok(BufferMut::zeroed(usize::try_from(meta.data_bytes).unwrap()))
    }

    fn message(&mut self, len: usize, _: usize) -> Result<BufferMut, Status> {
        Ok(BufferMut::zeroed(len))
    }

    fn grow(&mut self, _: BufferMut, _: usize) -> Result<BufferMut, Status> {
        unreachable!("memory was for all bytes")
    }

    fn block(&mut self, _: u64, _: usize) -> Option<BufferMut> {
        None
    }

    fn known_key(&mut self, _: &[u8]) -> Option<Text> {
        None
    }

    fn immediate_hit(&mut self, _: i64, _: &Text, _: usize) -> Option<ImmediateHit<'_>> {
        None
    }
}

/// More than 32 bits can say.
const LONG_DIMS: [u32; 2] = [65_537, 65_536];
const LONG_BYTES: u64 = LONG_DIMS[0] as u64 * LONG_DIMS[1] as u64;

/// checklist 12
#[test]
fn a_long_frame_of_an_original_is_taken() {
    for features in [Features::NONE, Features::ALL] {
        let mut client = ClientConnection::new(ConnectionLimits::default(), features);
        let call = client
            .call(Time::ZERO, receive("k"), CallOptions::default())
            .unwrap();
        while let Some(frame) = client.poll_frame() {
            client.handle_sent(frame, grpcxx_transport::Outcome::Done);
        }
        let header = ResponseHeader {
            tag: call.tag(),
            payload_bytes: 37 + LONG_BYTES,
            ..ResponseHeader::default()
        };
        let head = [&header.encode()[..], &record(LONG_DIMS)].concat();
        let mut landings = Untouched::default();
        let progress = client
            .handle_received(Time::ZERO, &head, &mut landings)
            .unwrap();
        assert_eq!(progress.consumed_bytes, head.len());
        let Next::Land(mut landing) = progress.next else {
            panic!("the data lands");
        };
        landing.advance(landing.remaining_bytes());
        client
            .handle_landed(Time::ZERO, landing, &mut landings)
            .unwrap();
        assert_eq!(landings.handed_out, LONG_BYTES);
        let Ok(Response::Tensors(tensors)) = client.poll_finished().unwrap().result else {
            panic!("a tensor");
        };
        assert_eq!(tensors[0].data.len() as u64, LONG_BYTES);
    }
}

/// checklist 12
#[test]
fn a_long_request_of_an_original_is_taken() {
    let mut pair = Pair::plain();
    pair.call(graph("f", vec![("x", floats(&[1.0]))], &[]));
    let mut bytes = pair.client.drain();
    let mut header = RequestHeader::decode(bytes.first_chunk().unwrap()).unwrap();
    header.payload_bytes += LONG_BYTES;
    let at = bytes.len() - 4 - 37;
    bytes.truncate(at);
    bytes.extend(record(LONG_DIMS));
    bytes[..HEADER_BYTES].copy_from_slice(&header.encode());

    let mut server = ServerConnection::new(ConnectionLimits::default(), Features::ALL);
    let mut landings = Untouched::default();
    let progress = server.handle_received(Time::ZERO, &bytes, &mut landings);
    let Next::Land(mut landing) = progress.unwrap().next else {
        panic!("the data lands");
    };
    landing.advance(landing.remaining_bytes());
    let next = server.handle_landed(Time::ZERO, landing, &mut landings);
    assert!(next.is_ok());
    let Request::StarRunGraph(call) = server.poll_request().unwrap().request else {
        panic!("a graph call");
    };
    assert_eq!(call.feeds[0].1.data.len() as u64, LONG_BYTES);
}

/// What the settings of this side allow counts for originals too.
#[test]
fn a_long_frame_beyond_the_limit_closes_the_link() {
    let limits = ConnectionLimits::default().with(|limits| limits.frame_bytes = LONG_BYTES);
    let mut pair = Pair::with_limits(limits, Features::NONE, Features::NONE);
    let call = pair.call(receive("k"));
    pair.client.drain();
    let mut bytes = response(call.tag(), b"", &[]);
    bytes.extend(record(LONG_DIMS));
    assert_eq!(
        pair.client.offer_violation(&bytes).to_string(),
        "a frame with its tensors is 4295032901 bytes, allowed are 0 to 4295032832"
    );
    assert_eq!(pair.client.landings.pieces, 0);
}

/// A graph call without metadata ends the process of an original. Ours has metadata though it asks
/// for nothing.
#[test]
fn a_graph_call_for_nothing_has_metadata() {
    let mut pair = Pair::plain();
    pair.call(graph("", vec![], &[]));
    let bytes = pair.client.drain();
    let header = RequestHeader::decode(bytes.first_chunk().unwrap()).unwrap();
    assert_eq!(header.metadata_bytes, 27);
    assert_eq!(header.payload_bytes, 27);
}

/// An original sends and takes at most 65535 pieces in a frame: a header, and two for each tensor.
#[test]
fn an_answer_has_at_most_32767_tensors() {
    const MOST: usize = 32_767;
    let names: Vec<String> = (0..=MOST).map(|number| format!("{number:05}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let tensor = floats(&[1.0]);
    let mut pair = Pair::plain();
    let most = &names[..MOST];
    let answer = tensors(most.iter().map(|_| tensor.clone()));
    pair.round_trip(fuse(most), answer);
    let fetched = most.iter().map(|&name| (name, tensor.clone())).collect();
    pair.round_trip(
        graph("f", vec![], most),
        Ok(Response::Fetched(named(fetched))),
    );
    for request in [fuse(&names), graph("f", vec![], &names)] {
        pair.call(request);
        let status = pair.finished().result.unwrap_err();
        assert_eq!(status.code, Code::ResourceExhausted);
        assert!(pair.client.drain().is_empty());
    }

    // An original that asks for more is answered so.
    let keys: Vec<Text> = names.iter().map(|&name| name.into()).collect();
    let mut body = Vec::new();
    grpcxx_rpc::wire::encode_receive(1, keys.iter(), &mut body);
    let header = RequestHeader {
        method: Method::FuseRecvTensor.number(),
        payload_bytes: body.len() as u64,
        ..RequestHeader::default()
    };
    pair.server.offer(&[&header.encode()[..], &body].concat());
    assert_eq!(pair.server.end.poll_request(), None);
    let answer = pair.server.drain();
    assert_eq!(answer[16], Code::InvalidArgument as u8);
}
