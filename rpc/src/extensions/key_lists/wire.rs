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

/// What a list counts, in bytes.
pub(crate) fn list_bytes(keys: &[Text]) -> usize {
    let bytes_of = |key: &Text| key.as_buffer().len() + KEY_BYTES;
    keys.iter().map(bytes_of).sum()
}

/// The number of the list at this place.
pub(crate) fn number(at: usize) -> i32 {
    at as i32 + 1
}

/// Length of the payload of a request that names a list by its number, which is the step.
pub(crate) const STEP_BYTES: usize = 8;

/// Lists that a connection can have, numbered from 1.
pub(crate) const LISTS_MAX: usize = 32;

/// Longest list.
pub(crate) const LIST_BYTES_MAX: usize = 256 << 10;

/// Longest lists of a connection together.
pub(crate) const LISTS_BYTES_MAX: usize = 2 << 20;

/// What each key of a list counts beside its bytes.
pub(crate) const KEY_BYTES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "it searches a document: a minute")]
    fn the_document_states_the_limits() {
        let document = include_str!("../../../../docs/wire.md");
        let document = document.split_whitespace().collect::<Vec<_>>().join(" ");
        let text = format!(
            "for each key, its bytes and {KEY_BYTES} more: at most {} KiB, and all lists of a \
             connection at most {} MiB",
            LIST_BYTES_MAX >> 10,
            LISTS_BYTES_MAX >> 20
        );
        assert!(document.contains(&text), "docs/wire.md lacks: {text}");
    }
}
