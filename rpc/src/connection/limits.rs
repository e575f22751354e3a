//! What one connection may hold and take.

use std::ops::Deref;

use crate::wire::{Features, HEADER_BYTES, ShapeForms};

/// Payload up to this length is copied into the frame; longer payload is attached by reference.
pub const COALESCE_BYTES_MAX: usize = 1024;

/// What one connection may hold, and what it accepts from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionLimits {
    /// Client: calls without a complete response, given up ones included. Server: requests without
    /// an answer that has left. Behind the last one a server stops reading, so the limit must be
    /// above the number of requests that wait for a later one on the same connection.
    pub outstanding_calls: usize,
    /// Streams of one connection that have not ended.
    pub streams: usize,
    /// Longest frame, header included, in bytes. None beyond 2^32 - 1 is sent unless both ends
    /// announced long frames.
    pub frame_bytes: u64,
    /// Longest protobuf message, in bytes.
    pub message_bytes: u64,
    /// Longest graph metadata, and longest list of names in a response, in bytes.
    pub names_bytes: usize,
    /// Most tensors in one frame, and most names in one list. No more than 32,767 are sent unless
    /// both ends announced many tensors.
    pub records: usize,
    /// Longest error text, in bytes.
    pub error_text_bytes: usize,
    /// Frames that are longer go in chunks to a peer that takes these, in bytes.
    pub whole_frame_bytes: u64,
    /// Payload of one chunk, in bytes.
    pub chunk_bytes: usize,
    /// What frames that are not complete may take of the arena of their receiver, in bytes. A frame
    /// that announces more fails alone, or as `goes_beyond` says.
    pub arena_bytes: u64,
    /// Whether frames beyond `arena_bytes` have the memory of
    /// [`Landings::tensor_beyond`](super::Landings::tensor_beyond).
    pub goes_beyond: bool,
    /// Server: bytes of answers that have not left, from which on no other request is read or
    /// served before some have.
    pub unsent_bytes: u64,
    /// Frames kept for reuse.
    pub pooled_frames: usize,
    /// Frames that have grown longer than this are not kept, in bytes.
    pub pooled_frame_bytes: usize,
    /// Memory of all frames that are kept, in bytes.
    pub pooled_bytes: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            outstanding_calls: 4096,
            streams: 128,
            frame_bytes: 1 << 36,
            message_bytes: 64 << 20,
            names_bytes: 64 << 20,
            records: RECORDS_MAX,
            error_text_bytes: 64 << 10,
            whole_frame_bytes: 256 << 20,
            chunk_bytes: 16 << 20,
            arena_bytes: u64::MAX,
            goes_beyond: false,
            unsent_bytes: 1 << 30,
            pooled_frames: 256,
            pooled_frame_bytes: 512 << 10,
            pooled_bytes: 4 << 20,
        }
    }
}

impl ConnectionLimits {
    /// These limits with what `change` sets; fields that it leaves alone keep their values.
    ///
    /// ```
    /// use grpcxx_rpc::ConnectionLimits;
    ///
    /// let limits = ConnectionLimits::default().with(|limits| limits.outstanding_calls = 64);
    /// assert_eq!(limits.outstanding_calls, 64);
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// The limits without what the protocol or the tables cannot hold.
    pub(crate) fn within_protocol(self) -> Self {
        Self {
            outstanding_calls: self.outstanding_calls.clamp(1, OUTSTANDING_CALLS_MAX),
            frame_bytes: self.frame_bytes.min(LONG_FRAME_BYTES_MAX),
            message_bytes: self.message_bytes.min(FRAME_BYTES_MAX),
            names_bytes: self.names_bytes.min(i32::MAX as usize),
            records: self.records.min(RECORDS_MAX),
            unsent_bytes: self.unsent_bytes.max(2),
            ..self
        }
    }

    /// The limits of what is sent between these ends, if `common` is what both have announced.
    pub(crate) fn between(self, common: Features) -> SendLimits {
        let mut limits = self;
        if !common.contains(Features::LONG_FRAMES) {
            limits.frame_bytes = self.frame_bytes.min(FRAME_BYTES_MAX);
        }
        if !common.contains(Features::MANY_TENSORS) {
            limits.records = self.records.min(STAR_RECORDS_MAX);
        }
        SendLimits {
            limits,
            shapes: ShapeForms::of(common),
            details_bytes: match common.contains(Features::STATUS_DETAILS) {
                true => DETAILS_BYTES_MAX,
                false => 0,
            },
        }
    }

    /// Longest payload of a frame, in bytes.
    pub(crate) fn payload_bytes(&self) -> u64 {
        self.frame_bytes.saturating_sub(HEADER_BYTES as u64)
    }

    /// Most calls that hold a slot at a client: those of its user, and the announcement.
    pub fn client_slots(&self) -> usize {
        self.outstanding_calls + ANNOUNCEMENT_CALLS
    }

    /// Most frames that wait at a client for the link: each slot's request, and a cancel for each
    /// slot.
    pub fn client_frames(&self) -> usize {
        self.client_slots() + self.client_slots()
    }

    /// Most frames that wait at a server for the link: one answer for each request.
    pub fn server_frames(&self) -> usize {
        self.outstanding_calls + CHUNKED_REQUESTS
    }
}

/// What the ends of a connection may send each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendLimits {
    limits: ConnectionLimits,
    /// In which forms shapes may travel.
    pub(crate) shapes: ShapeForms,
    /// Longest details of a failure; 0 if none may travel.
    pub(crate) details_bytes: usize,
}

impl Deref for SendLimits {
    type Target = ConnectionLimits;

    fn deref(&self) -> &ConnectionLimits {
        &self.limits
    }
}

/// Longest details of a failure, in bytes: as long as all metadata of a message.
pub(crate) const DETAILS_BYTES_MAX: usize = 32 << 10;

/// Originals hold the length of a frame in 32 bits.
pub(crate) const FRAME_BYTES_MAX: u64 = u32::MAX as u64;

/// Far beyond the memory of a machine, so that sums of lengths stay in range.
const LONG_FRAME_BYTES_MAX: u64 = 1 << 48;

/// Originals send at most 65535 pieces: one header, and for each tensor its record and its data.
pub(crate) const STAR_RECORDS_MAX: usize = (65_535 - 1) / 2;

/// A shard decodes and sorts the names of one call in some milliseconds.
const RECORDS_MAX: usize = 1 << 17;

const ANNOUNCEMENT_CALLS: usize = 1;

/// Requests that arrive in chunks while others come: those of which one may wait for it are not to
/// hold it up.
const CHUNKED_REQUESTS: usize = 1;

/// Slots are counted in 32 bits, of which the last value means none.
const OUTSTANDING_CALLS_MAX: usize = u32::MAX as usize - 1 - ANNOUNCEMENT_CALLS;

const _: () = assert!(STAR_RECORDS_MAX == 32_767);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_states_the_defaults() {
        let document = include_str!("../../../docs/wire.md");
        let limits = ConnectionLimits::default();
        assert_eq!(limits, limits.within_protocol());
        assert_eq!(limits.frame_bytes, 1 << 36);
        let star = limits.between(Features::NONE);
        assert_eq!(star.frame_bytes, (1 << 32) - 1);
        assert_eq!((star.records, limits.records), (32_767, 1 << 17));
        let both = Features::LONG_FRAMES | Features::MANY_TENSORS;
        assert_eq!(*limits.between(both), limits);
        assert_eq!(limits.message_bytes, 64 << 20);
        assert_eq!(limits.names_bytes, 64 << 20);
        assert_eq!(limits.error_text_bytes, 64 << 10);
        let rows = [
            "| frame that is sent | 2^32 - 1 bytes; 2^36 between ends that know *long frames* |"
                .to_owned(),
            "| frame that is received | 2^36 bytes |".to_owned(),
            "| message | 64 MiB |".to_owned(),
            "| graph metadata, names of a response | 64 MiB |".to_owned(),
            format!(
                "| records of one frame | {}; 2^17 between ends that know *many tensors* |",
                star.records
            ),
            "| error text | 64 KiB |".to_owned(),
            format!(
                "| requests on one connection without an answer | {} |",
                limits.outstanding_calls
            ),
        ];
        let chunks = format!(
            "We cut frames of more than {} MiB, into chunks with {} MiB of payload",
            limits.whole_frame_bytes >> 20,
            limits.chunk_bytes >> 20
        );
        for row in rows.into_iter().chain([chunks]) {
            assert!(document.contains(&row), "docs/wire.md lacks {row}");
        }
    }

    #[test]
    fn limits_beyond_the_protocol_are_cut() {
        let limits = ConnectionLimits {
            outstanding_calls: 0,
            frame_bytes: u64::MAX,
            message_bytes: u64::MAX,
            names_bytes: usize::MAX,
            records: usize::MAX,
            ..ConnectionLimits::default()
        };
        let cut = limits.within_protocol();
        assert_eq!(cut.outstanding_calls, 1);
        assert_eq!(cut.frame_bytes, LONG_FRAME_BYTES_MAX);
        assert_eq!(cut.message_bytes, FRAME_BYTES_MAX);
        assert_eq!(cut.names_bytes, i32::MAX as usize);
        assert_eq!(cut.records, RECORDS_MAX);
        assert_eq!(cut.client_slots(), 2);
        assert_eq!(cut.client_frames(), 4);
        assert_eq!(cut.server_frames(), 2);
    }
}
