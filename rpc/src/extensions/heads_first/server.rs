//! Responses with all heads first, as a server sends them.

use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_transport::Frame;

use crate::connection::encode::{finish_response, reserve_header};
use crate::connection::{COALESCE_BYTES_MAX, SendLimits};
use crate::wire::{DATA_ALIGNMENT_BYTES, HEADER_BYTES, encode_heads, filled_up};
use crate::{DTypeClass, Status, Tensor};

/// Whether a response with these tensors is worth the form with all heads first.
pub(crate) fn suits(tensors: &[Tensor]) -> bool {
    tensors.len() > 1
        && tensors.iter().all(|tensor| {
            tensor.data.len() <= SENT_TENSOR_BYTES_MAX && tensor.dtype.class() != DTypeClass::Proto
        })
}

/// Fills an empty frame with a response that is tensors, all heads first. If there is `memory` for
/// the data, it is put together there instead of in the frame.
///
/// # Errors
/// The response cannot be sent; the frame has to be cleared.
pub(crate) fn response(
    frame: &mut Frame,
    tag: u64,
    tensors: &[Tensor],
    limits: &SendLimits,
    memory: &mut dyn FnMut(usize) -> Option<BufferMut>,
) -> Result<(), Status> {
    reserve_header(frame);
    encode_heads(tensors, limits.shapes, frame.bytes_mut())?;
    let heads_bytes = (frame.bytes().len() - HEADER_BYTES) as i32;
    let each = tensors
        .iter()
        .map(|tensor| filled_up(tensor.data.len() as u64) as usize);
    let data_bytes = each.sum();
    let memory = if data_bytes >= LENT_BYTES_MIN {
        memory(data_bytes).filter(|memory| memory.len() == data_bytes)
    } else {
        None
    };
    match memory {
        Some(memory) => frame.attach(put_together(tensors, memory)),
        None => append(frame, tensors),
    }
    finish_response(frame, tag, heads_bytes, limits)
}

/// Fills memory with the data of tensors.
fn put_together(tensors: &[Tensor], mut memory: BufferMut) -> Buffer {
    let mut rest = &mut memory[..];
    for Tensor { data, .. } in tensors {
        let (place, behind) = rest.split_at_mut(filled_up(data.len() as u64) as usize);
        let (place, fill) = place.split_at_mut(data.len());
        place.copy_from_slice(data);
        if !fill.is_empty() {
            // The peer sees all of it.
            fill.fill(0);
        }
        rest = behind;
    }
    memory.freeze()
}

/// Appends the data of tensors to a frame.
fn append(frame: &mut Frame, tensors: &[Tensor]) {
    let copied = |tensor: &Tensor| match tensor.data.len() {
        len if len <= COALESCE_BYTES_MAX => filled_up(len as u64) as usize,
        len => fill_bytes(len),
    };
    frame.bytes_mut().reserve(tensors.iter().map(copied).sum());
    for Tensor { data, .. } in tensors {
        if data.len() <= COALESCE_BYTES_MAX {
            frame.bytes_mut().extend_from_slice(data);
        } else {
            frame.attach(data.clone());
        }
        let fill = &[0; DATA_ALIGNMENT_BYTES as usize][..fill_bytes(data.len())];
        frame.bytes_mut().extend_from_slice(fill);
    }
}

/// What fills data up.
fn fill_bytes(data_bytes: usize) -> usize {
    (filled_up(data_bytes as u64) - data_bytes as u64) as usize
}

/// Longest data of a tensor in a response that is sent with all heads first; beyond, memory of its
/// own costs little beside the bytes.
const SENT_TENSOR_BYTES_MAX: usize = 8 << 10;

/// Shortest data of a response that is put together in memory that the link can lend.
const LENT_BYTES_MIN: usize = 32 << 10;
