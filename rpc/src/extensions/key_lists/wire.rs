//! The bytes of requests whose server keeps their keys, or that name keys it has kept.

use grpcxx_transport::Frame;

use crate::wire::{HEADER_BYTES, RequestHeader};
use crate::{Method, Text};

/// Fills an empty frame with a request for the tensors of a list that the server keeps.
pub(crate) fn request(frame: &mut Frame, tag: u64, timeout_ms: i32, step_id: i64, number: i32) {
    let header = RequestHeader {
        method: Method::FuseRecvTensor.number(),
        tag,
        timeout_ms,
        metadata_bytes: -number,
        payload_bytes: STEP_BYTES as u64,
    };
    frame.bytes_mut().extend_from_slice(&header.encode());
    frame.bytes_mut().extend_from_slice(&step_id.to_le_bytes());
}

/// Writes into the header of a request that the server shall keep its keys.
pub(crate) fn mark(frame: &mut Frame, number: i32) {
    let header = frame.bytes_mut().first_chunk_mut::<HEADER_BYTES>();
    let bytes = header.expect("a request begins with its header");
    let header = RequestHeader::decode(bytes).expect("it was just written");
    *bytes = RequestHeader {
        metadata_bytes: number,
        ..header
    }
    .encode();
}

/// Whether a list is not too long to be kept.
pub(crate) fn fits(keys: &[Text]) -> bool {
    let bytes: usize = keys.iter().map(|key| key.as_buffer().len()).sum();
    bytes <= LIST_BYTES_MAX
}

/// The number of the list at this place.
pub(crate) fn number(at: usize) -> i32 {
    at as i32 + 1
}

/// Length of the payload of a request that names a list by its number, which is the step.
pub(crate) const STEP_BYTES: usize = 8;

/// Lists that a connection can have, numbered from 1.
pub(crate) const LISTS_MAX: usize = 32;

/// Longest list: its keys together, in bytes.
pub(crate) const LIST_BYTES_MAX: usize = 256 << 10;
