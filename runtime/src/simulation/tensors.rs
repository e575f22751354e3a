use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use grpcxx_memory::Buffer;
use grpcxx_rpc::{DType, Shape, Tensor, Text};
use grpcxx_transport::{Frame, Outcome};

/// What became of each tensor that was made for a step.
#[derive(Debug, Default)]
pub(super) struct Tensors {
    records: Vec<Record>,
    returned: usize,
    live: Arc<AtomicUsize>,
}

/// One tensor. It is known by its id, which is in its bytes.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) home: usize,
    pub(super) epoch: u32,
    pub(super) step_id: i64,
    pub(super) key: Text,
    pub(super) len_bytes: usize,
    pub(super) state: State,
    /// An answer that carries it was accepted by a link and has not come back.
    is_in_frame: bool,
    /// All bytes of an answer that carried it have left.
    pub(super) has_left: bool,
    pub(super) delivered_to: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It has a key, but was not sent yet.
    Planned,
    /// It was put into its step.
    Offered,
}

/// Memory that is counted as long as it lives.
struct Counted {
    bytes: Vec<u8>,
    live: Arc<AtomicUsize>,
}

impl Tensors {
    /// The id of the next tensor.
    pub(super) fn next_id(&self) -> usize {
        self.records.len()
    }

    pub(super) fn plan(
        &mut self,
        home: usize,
        epoch: u32,
        step_id: i64,
        key: Text,
        len_bytes: usize,
    ) -> usize {
        self.records.push(Record {
            home,
            epoch,
            step_id,
            key,
            len_bytes,
            state: State::Planned,
            is_in_frame: false,
            has_left: false,
            delivered_to: None,
        });
        self.records.len() - 1
    }

    /// The tensor with this id, ready to be sent.
    pub(super) fn make(&self, id: usize) -> Tensor {
        self.live.fetch_add(1, Ordering::Relaxed);
        let len_bytes = self.records[id].len_bytes;
        tensor(Buffer::from_owner(Counted {
            bytes: body(id, len_bytes),
            live: Arc::clone(&self.live),
        }))
    }

    pub(super) fn record(&self, id: usize) -> &Record {
        &self.records[id]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Record)> {
        self.records.iter().enumerate()
    }

    pub(super) fn offered(&mut self, id: usize) {
        self.records[id].state = State::Offered;
    }

    /// Tensors whose first memory is still held by somebody.
    pub(super) fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// How often a tensor came back because the answer with it had not left.
    pub(super) fn returned(&self) -> usize {
        self.returned
    }

    /// Whether a tensor waits in its step, unless that is over.
    pub(super) fn is_there(&self, id: usize) -> bool {
        let record = &self.records[id];
        record.state == State::Offered && !record.is_in_frame && record.delivered_to.is_none()
    }

    /// A link has accepted an answer with this tensor.
    pub(super) fn framed(&mut self, id: usize) {
        let record = &mut self.records[id];
        let is_free = !record.is_in_frame && !record.has_left && record.delivered_to.is_none();
        assert!(is_free, "tensor {id} was handed out twice: {record:?}");
        record.is_in_frame = true;
    }

    /// The answer came back from the link.
    pub(super) fn unframed(&mut self, id: usize, outcome: Outcome) {
        let record = &mut self.records[id];
        record.is_in_frame = false;
        match outcome {
            Outcome::Done => record.has_left = true,
            Outcome::Lost => {
                assert_eq!(
                    record.delivered_to, None,
                    "tensor {id} was delivered, and goes back into its step too"
                );
                self.returned += 1;
            }
        }
    }

    /// A caller got this tensor, which must be the one with this id.
    pub(super) fn deliver(&mut self, id: usize, tensor: &Tensor, call: usize, is_local: bool) {
        let record = &mut self.records[id];
        assert!(
            tensor.data[..] == body(id, record.len_bytes)[..],
            "call {call} got other bytes than those of tensor {id}"
        );
        assert_eq!(
            record.delivered_to, None,
            "tensor {id} was delivered a second time, to call {call}"
        );
        assert_eq!(
            record.state,
            State::Offered,
            "tensor {id} was never sent, but call {call} got it"
        );
        // A peer that fetches payload has it before the frame comes back.
        assert_eq!(
            record.has_left || record.is_in_frame,
            !is_local,
            "tensor {id} came to call {call} by a road it did not take: {record:?}"
        );
        record.delivered_to = Some(call);
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The ids of all tensors in a frame.
pub(super) fn ids_in(frame: &Frame) -> Vec<usize> {
    let mut ids = Vec::new();
    for (index, segment) in frame.segments().enumerate() {
        let is_payload = index % 2 == 1;
        if is_payload {
            ids.extend(id_at(segment));
            continue;
        }
        ids.extend(ids_among(segment));
    }
    ids
}

/// The ids of all tensors in any bytes.
pub(super) fn ids_among(mut bytes: &[u8]) -> Vec<usize> {
    let mut ids = Vec::new();
    while let Some(at) = bytes.iter().position(|byte| *byte == MAGIC[0]) {
        bytes = &bytes[at..];
        match id_at(bytes) {
            Some(id) => {
                ids.push(id);
                bytes = &bytes[BODY_BYTES_MIN..];
            }
            None => bytes = &bytes[1..],
        }
    }
    ids
}

/// A vector of bytes as a tensor.
pub(super) fn tensor(data: impl Into<Buffer>) -> Tensor {
    let data = data.into();
    let shape = Shape::new(&[data.len() as u64]).expect("one dimension");
    Tensor::new(DType::UInt8, shape, data).expect("as many bytes as elements")
}

fn id_at(bytes: &[u8]) -> Option<usize> {
    let rest = bytes.strip_prefix(&MAGIC)?;
    let id: [u8; 8] = rest.get(..8)?.try_into().ok()?;
    Some(u64::from_le_bytes(id) as usize)
}

fn body(id: usize, len_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len_bytes);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&(id as u64).to_le_bytes());
    let mut word = (id as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while bytes.len() < len_bytes {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        bytes.push(word as u8 & 0x7f);
    }
    bytes
}

/// How the bytes of each tensor begin; its id follows. The first byte is in no other byte of a
/// body.
const MAGIC: [u8; 8] = *b"\xd7tensor:";

/// Shortest tensor that has room for mark and id.
pub(super) const BODY_BYTES_MIN: usize = 16;
