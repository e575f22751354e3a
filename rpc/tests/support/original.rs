//! Peers that know plain star and nothing else.
//!
//! They check each byte that they get: whatever is not plain star is a failed assertion. Only
//! unknown fields of protobuf messages pass, because an original's protobuf library skips those.

use grpcxx_rpc::proto::{self, GetStatusResponse};
use grpcxx_rpc::wire::{
    HEADER_BYTES, RECORD_BYTES, RequestHeader, ResponseHeader, ShapeForms, decode_graph_metadata,
    decode_names, decode_record,
};
use grpcxx_rpc::{Code, Method};
use prost::Message;

/// A server that never heard of grpcxx. It answers nothing by itself.
#[derive(Default)]
pub struct OriginalServer {
    bytes: Vec<u8>,
}

/// A client that never heard of grpcxx. It asks what it is told to.
#[derive(Default)]
pub struct OriginalClient {
    bytes: Vec<u8>,
    /// Requests without a response: tag, and what a successful response consists of.
    outstanding: Vec<(u64, Expected)>,
}

/// A request as an original reads it.
#[derive(Clone, Debug, PartialEq)]
pub struct PlainRequest {
    pub method: Method,
    pub tag: u64,
    pub payload: Vec<u8>,
}

/// A response as an original reads it.
#[derive(Clone, Debug, PartialEq)]
pub struct PlainResponse {
    pub tag: u64,
    pub status: i32,
    pub payload: Vec<u8>,
}

/// What a successful response consists of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expected {
    Message,
    Tensors(usize),
    Fetched(usize),
}

impl OriginalServer {
    /// Takes bytes and returns the requests that are complete.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<PlainRequest> {
        self.bytes.extend_from_slice(bytes);
        let mut requests = Vec::new();
        while let Some(head) = self.bytes.first_chunk::<HEADER_BYTES>() {
            let header = RequestHeader::decode(head).expect("a frame begins with AAAA");
            let method = Method::from_number(header.method).expect("a method of the table");
            let unsupported = [1, 14, 15, 16, 17];
            assert!(
                !unsupported.contains(&method.number()),
                "{method} stops an original"
            );
            assert_eq!(header.timeout_ms, 0, "star has no deadline");
            if method != Method::StarRunGraph {
                assert_eq!(header.metadata_bytes, 0);
            }
            let end = HEADER_BYTES + usize::try_from(header.payload_bytes).unwrap();
            if self.bytes.len() < end {
                break;
            }
            let payload: Vec<u8> = self.bytes.drain(..end).skip(HEADER_BYTES).collect();
            check_request(method, header.metadata_bytes, &payload);
            requests.push(PlainRequest {
                method,
                tag: header.tag,
                payload,
            });
        }
        requests
    }

    /// Whether no frame is incomplete.
    pub fn is_idle(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// A response frame of an original.
pub fn response(tag: u64, status: i32, payload: &[u8]) -> Vec<u8> {
    let header = ResponseHeader {
        tag,
        status,
        names_bytes: 0,
        payload_bytes: payload.len() as u64,
    };
    [&header.encode(), payload].concat()
}

impl OriginalClient {
    /// A request frame.
    pub fn request(
        &mut self,
        method: i32,
        tag: u64,
        payload: &[u8],
        expected: Expected,
    ) -> Vec<u8> {
        self.outstanding.push((tag, expected));
        let header = RequestHeader {
            method,
            tag,
            payload_bytes: payload.len() as u64,
            ..RequestHeader::default()
        };
        [&header.encode(), payload].concat()
    }

    /// Takes bytes and returns the responses that are complete.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<PlainResponse> {
        self.bytes.extend_from_slice(bytes);
        let mut responses = Vec::new();
        while let Some(head) = self.bytes.first_chunk::<HEADER_BYTES>() {
            assert_eq!(head[4..8], [0; 4], "the method field of a response is 0");
            let header = ResponseHeader::decode(head).expect("a frame begins with BBBB");
            let end = HEADER_BYTES + usize::try_from(header.payload_bytes).unwrap();
            if self.bytes.len() < end {
                break;
            }
            let payload: Vec<u8> = self.bytes.drain(..end).skip(HEADER_BYTES).collect();
            let place = self
                .outstanding
                .iter()
                .position(|&(tag, _)| tag == header.tag);
            let (_, expected) = self
                .outstanding
                .swap_remove(place.expect("an original's own tag"));
            check_response(&header, &payload, expected);
            responses.push(PlainResponse {
                tag: header.tag,
                status: header.status,
                payload,
            });
        }
        responses
    }

    /// Whether every request has its response, and no frame is incomplete.
    pub fn is_idle(&self) -> bool {
        self.bytes.is_empty() && self.outstanding.is_empty()
    }
}

fn check_request(method: Method, metadata_bytes: i32, payload: &[u8]) {
    match method {
        Method::GetStatus => drop(proto::GetStatusRequest::decode(payload).unwrap()),
        Method::RecvTensor => drop(proto::RecvTensorRequest::decode(payload).unwrap()),
        Method::FuseRecvTensor => {
            let message = proto::FuseRecvTensorRequest::decode(payload).unwrap();
            assert!(!message.rendezvous_key.is_empty());
        }
        Method::StarRunGraph => {
            let (metadata, feeds) = payload.split_at(usize::try_from(metadata_bytes).unwrap());
            let (_, names) = decode_graph_metadata(&metadata.to_vec().into(), 1000).unwrap();
            check_records(feeds, names.len());
        }
        _ => {}
    }
}

fn check_response(header: &ResponseHeader, payload: &[u8], expected: Expected) {
    if header.status != 0 {
        assert!(Code::from_number(header.status).is_some(), "{header:?}");
        assert_eq!(header.names_bytes, 0);
        assert!(
            !payload.is_empty(),
            "an empty text looks like the end of the connection"
        );
        return;
    }
    match expected {
        Expected::Message => assert_eq!(header.names_bytes, 0),
        Expected::Tensors(count) => {
            assert_eq!(header.names_bytes, 0);
            check_records(payload, count);
        }
        Expected::Fetched(count) => {
            let (names, records) = payload.split_at(usize::try_from(header.names_bytes).unwrap());
            let names = decode_names(&names.to_vec().into(), 1000).unwrap();
            assert_eq!(names.len(), count);
            assert!(names.is_sorted());
            check_records(records, count);
        }
    }
}

/// Reads records as an original does: shape images are memory, data is as long as the head says.
fn check_records(mut bytes: &[u8], count: usize) {
    for _ in 0..count {
        let head = bytes.first_chunk::<RECORD_BYTES>().expect("a whole record");
        let meta = decode_record(head, ShapeForms::Star).unwrap();
        let rank = meta.shape.rank();
        let used = rank * if head[5 + 15] == 0 { 2 } else { 4 };
        assert!(
            head[5 + used..5 + 13].iter().all(|&byte| byte == 0),
            "unused bytes are zero"
        );
        bytes = &bytes[RECORD_BYTES + usize::try_from(meta.data_bytes).unwrap()..];
    }
    assert!(bytes.is_empty(), "the payload is as long as its records");
}

/// A status as the service of an original gives it.
pub fn status_body() -> Vec<u8> {
    GetStatusResponse {
        device_attributes: vec![proto::DeviceAttributes {
            name: "/job:ps/replica:0/task:0/device:CPU:0".into(),
            device_type: "CPU".into(),
            memory_limit: 1 << 28,
            incarnation: 0x0123_4567_89ab_cdef,
            ..Default::default()
        }],
    }
    .encode_to_vec()
}
