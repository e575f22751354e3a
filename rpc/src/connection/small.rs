//! The tensors of a small frame that is there as a whole.

use grpcxx_memory::Buffer;
use smallvec::SmallVec;

use super::cursor::Cursor;
use super::records::tensor_memory;
use super::{ConnectionLimits, Landings};
use crate::connection::landings::whole;
use crate::wire::{HEADER_BYTES, RECORD_BYTES, RecordCache, ShapeForms};
use crate::{Status, Tensor, TensorMeta};

/// What a small frame is read with.
pub(crate) struct SmallFrame<'a> {
    /// Whose tensors they are, for [`Landings::tensor`].
    pub(crate) token: u64,
    /// Bytes of payload before the records.
    pub(crate) head_bytes: usize,
    /// What other frames of the connection take of the arena.
    pub(crate) beside_bytes: u64,
    pub(crate) shapes: ShapeForms,
    pub(crate) limits: &'a ConnectionLimits,
}

impl SmallFrame<'_> {
    /// Takes so many tensors, if they are few, small, and all there as they should be; else nothing
    /// was taken, and their records are read one after the other.
    #[inline]
    pub(crate) fn tensors(
        &self,
        count: usize,
        cache: &mut RecordCache,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Option<Result<SmallVec<[Tensor; 1]>, Status>> {
        if count > COUNT_MAX {
            return None;
        }
        let bytes = cursor.peek_rest();
        let mut heads: SmallVec<[(TensorMeta, &[u8]); 1]> = SmallVec::new();
        let mut rest = bytes;
        let mut data_bytes = 0;
        for _ in 0..count {
            let (head, behind) = rest.split_first_chunk::<RECORD_BYTES>()?;
            let meta = cache.decode(head, self.shapes).ok()?;
            let len = usize::try_from(meta.data_bytes).ok()?;
            let data = behind.get(..len)?;
            rest = &behind[len..];
            data_bytes += len;
            heads.push((meta, data));
        }
        let taken_bytes = bytes.len() - rest.len();
        let frame_bytes = (HEADER_BYTES + self.head_bytes + taken_bytes) as u64;
        let arena_bytes = self.beside_bytes.saturating_add(data_bytes as u64);
        if data_bytes > DATA_BYTES_MAX
            || frame_bytes > self.limits.frame_bytes
            || arena_bytes > self.limits.arena_bytes
        {
            return None;
        }
        cursor.slice(taken_bytes);
        let mut tensors = SmallVec::new();
        for (index, (meta, data)) in heads.iter().enumerate() {
            match small_data((self.token, index), meta, data, self.limits, landings) {
                Ok(data) => tensors.push(meta.tensor(data)),
                Err(status) => return Some(Err(status)),
            }
        }
        Some(Ok(tensors))
    }
}

/// The data of the tensor at a place, a token and an index, that is there as a whole, in memory of
/// its own.
#[inline]
pub(crate) fn small_data(
    (token, index): (u64, usize),
    meta: &TensorMeta,
    data: &[u8],
    limits: &ConnectionLimits,
    landings: &mut dyn Landings,
) -> Result<Buffer, Status> {
    if data.is_empty() {
        return Ok(Buffer::new());
    }
    let memory = tensor_memory(token, index, meta, data.len(), limits, landings);
    let mut memory = whole(memory, data.len() as u64)?;
    memory.copy_from_slice(data);
    Ok(memory.freeze())
}

/// Most tensors, and most bytes of their data together: what is longer is worth its own reads.
const COUNT_MAX: usize = 8;
const DATA_BYTES_MAX: usize = 4096;
