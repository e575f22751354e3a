//! Memory for the data of tensor records, and what is said where there is none.

use grpcxx_memory::BufferMut;
use grpcxx_transport::Landing;

use crate::connection::landings::checked;
use crate::connection::{ConnectionLimits, Landings};
use crate::{Code, DTypeClass, Reason, Status, TensorMeta};

/// Memory for the data of a tensor, of which so many bytes have come; maybe only for the first part
/// of it.
#[inline]
pub(crate) fn tensor_memory(
    token: u64,
    index: usize,
    meta: &TensorMeta,
    there_bytes: usize,
    limits: &ConnectionLimits,
    landings: &mut dyn Landings,
) -> Result<BufferMut, Status> {
    check_length(meta, limits)?;
    let memory = landings.tensor(token, index, meta, there_bytes);
    checked(memory, there_bytes, meta.data_bytes)
}

/// As [`tensor_memory`], for a frame that announces so many bytes up to the end of this tensor,
/// perhaps beyond the share of its connection.
#[inline]
pub(crate) fn tensor_memory_within(
    announced_bytes: u64,
    (token, index): (u64, usize),
    meta: &TensorMeta,
    there_bytes: usize,
    limits: &ConnectionLimits,
    landings: &mut dyn Landings,
) -> Result<BufferMut, Status> {
    if !limits.goes_beyond || announced_bytes <= limits.arena_bytes {
        return tensor_memory(token, index, meta, there_bytes, limits, landings);
    }
    memory_beyond(token, index, meta, there_bytes, limits, landings)
        .map_err(|status| nothing_beyond(announced_bytes, limits, &status))
}

/// As [`tensor_memory`], where the frame is beyond the share of its connection.
#[cold]
fn memory_beyond(
    token: u64,
    index: usize,
    meta: &TensorMeta,
    there_bytes: usize,
    limits: &ConnectionLimits,
    landings: &mut dyn Landings,
) -> Result<BufferMut, Status> {
    check_length(meta, limits)?;
    let memory = landings.tensor_beyond(token, index, meta, there_bytes);
    checked(memory, there_bytes, meta.data_bytes)
}

/// Checks that data which is a message is no longer than messages may be.
#[inline]
fn check_length(meta: &TensorMeta, limits: &ConnectionLimits) -> Result<(), Status> {
    match meta.dtype.class() == DTypeClass::Proto && meta.data_bytes > limits.message_bytes {
        true => Err(message_too_long(meta.data_bytes, limits)),
        false => Ok(()),
    }
}

/// A landing for the data of a tensor, in memory for all of it or its first part. Memory of an
/// arena is nobody's choice, so a link may bring its own in its place; but only for data that
/// nobody parses, since the peer may still be able to write there.
pub(crate) fn landing(buffer: BufferMut, meta: &TensorMeta) -> Landing {
    let landing = if buffer.is_arena() && meta.dtype.class() != DTypeClass::Proto {
        Landing::replaceable(buffer)
    } else {
        Landing::new(buffer)
    };
    // The memory is no longer than the data, so the data has a length here.
    landing.announced(meta.data_bytes as usize)
}

/// The failure of a call whose frame wants more of the arena than a connection may have.
pub(crate) fn beyond_share(found_bytes: u64, limits: &ConnectionLimits) -> Status {
    Status::new(
        Code::ResourceExhausted,
        format!(
            "unfinished frames of this connection announce {found_bytes} bytes, allowed are {} \
             (GRPCXX_CONNECTION_ARENA_BYTES_MAX, or half of GRPCXX_ARENA_BYTES where that is not \
             set); send less at once, or raise one of these of the receiver",
            limits.arena_bytes
        ),
    )
    .because(Reason::Memory)
}

/// The failure of a call whose frame is beyond the share of its connection, where there is no
/// memory beyond it either.
#[cold]
fn nothing_beyond(found_bytes: u64, limits: &ConnectionLimits, why: &Status) -> Status {
    Status::new(
        why.code,
        format!(
            "unfinished frames of this connection announce {found_bytes} bytes, and its share of \
             the arena is {}; {}",
            limits.arena_bytes, why.message
        ),
    )
    .because(why.reason)
}

/// The failure of a call whose message is not worth its memory.
pub(crate) fn message_too_long(found_bytes: u64, limits: &ConnectionLimits) -> Status {
    Status::new(
        Code::ResourceExhausted,
        format!(
            "the peer sent a message of {found_bytes} bytes, allowed are {}",
            limits.message_bytes
        ),
    )
    .because(Reason::Limit)
}
