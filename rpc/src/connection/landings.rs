//! Where payload lands, and what its owner is asked for that memory.

use grpcxx_memory::{ArenaRoom, BufferMut};

use crate::{Code, HeldTensor, Status, Tensor, TensorMeta, Text};

/// Where payload lands: the memory that the owner of a connection has for what arrives.
pub trait Landings {
    /// Memory for the data of a tensor, of which `there_bytes` have come and `meta.data_bytes`,
    /// never 0, are announced.
    ///
    /// It is at least as long as what has come, and at most as long as what is announced.
    /// [`Landings::grow`] makes it longer, so that memory follows the bytes.
    ///
    /// At a client `token` is that of the call and `index` the place among the keys or fetches that
    /// it asked for; at a server `token` is the request's [`RequestId`](crate::RequestId) and
    /// `index` the place among the feeds.
    ///
    /// # Errors
    /// The call fails with this status; its payload is taken off the link and dropped.
    fn tensor(
        &mut self,
        token: u64,
        index: usize,
        meta: &TensorMeta,
        there_bytes: usize,
    ) -> Result<BufferMut, Status>;

    /// As [`Landings::tensor`], for a frame that is beyond
    /// [`ConnectionLimits::arena_bytes`](super::ConnectionLimits): memory that no other connection
    /// has a share of.
    ///
    /// # Errors
    /// The call fails with this status; its payload is taken off the link and dropped.
    fn tensor_beyond(
        &mut self,
        token: u64,
        index: usize,
        meta: &TensorMeta,
        there_bytes: usize,
    ) -> Result<BufferMut, Status> {
        self.tensor(token, index, meta, there_bytes)
    }

    /// Memory for a message, names or text of `len` bytes, which is never 0, of which `there_bytes`
    /// have come. As long as that of a tensor is.
    ///
    /// # Errors
    /// The call fails with this status; its payload is taken off the link and dropped.
    fn message(&mut self, len: usize, there_bytes: usize) -> Result<BufferMut, Status>;

    /// Longer memory for what `whole_len` bytes are announced for, with the same bytes at its
    /// start. `memory` was given for it before and is full.
    ///
    /// # Errors
    /// The call fails with this status; its payload is taken off the link and dropped.
    fn grow(&mut self, memory: BufferMut, whole_len: usize) -> Result<BufferMut, Status>;

    /// What is free of the memory that payload lands in. `None` says that there is always enough.
    fn room(&mut self) -> Option<ArenaRoom> {
        None
    }

    /// Memory of exactly `len` bytes, which is never 0, for several small tensors of a response at
    /// once, or of responses that come together, of which `token` is the first: each begins at a
    /// multiple of [`DATA_ALIGNMENT_BYTES`](crate::wire::DATA_ALIGNMENT_BYTES), and all of it stays
    /// as long as one of them does. `None` gives each tensor memory of its own, through
    /// [`Landings::tensor`]. A server does not ask.
    fn block(&mut self, token: u64, len: usize) -> Option<BufferMut>;

    /// The text of a rendezvous key, if it is known already. A request for such keys needs no
    /// memory for its message. A client does not ask.
    fn known_key(&mut self, bytes: &[u8]) -> Option<Text>;

    /// The tensor that a request asks for, if it is there with at most so many bytes of data, and
    /// if nobody has to see the request: it is answered then before it becomes one. A client does
    /// not ask.
    fn immediate_hit(
        &mut self,
        step_id: i64,
        key: &Text,
        data_bytes_max: usize,
    ) -> Option<ImmediateHit<'_>>;
}

/// A tensor that is there when it is asked for.
#[derive(Debug)]
pub enum ImmediateHit<'a> {
    /// It was taken out of its step, and is held until
    /// [`ServerConnection::drain_released`](crate::ServerConnection::drain_released) gives it back,
    /// or [`ServerConnection::poll_lost`](crate::ServerConnection::poll_lost) if it did not reach
    /// the link.
    Borrowed(HeldTensor, &'a Tensor),
    /// Its owner keeps it, and wants nothing back.
    Owned(Tensor),
}

/// Memory for a message, names or text, of which so many bytes have come; maybe only for the first
/// part of it.
pub(crate) fn message(
    landings: &mut dyn Landings,
    len: usize,
    there_bytes: usize,
) -> Result<BufferMut, Status> {
    checked(landings.message(len, there_bytes), there_bytes, len as u64)
}

/// Memory for all of a message that must not be dropped: the heap's, if there is no other.
pub(crate) fn message_in_any_case(landings: &mut dyn Landings, len: usize) -> BufferMut {
    if len == 0 {
        return BufferMut::new();
    }
    whole(landings.message(len, len), len as u64).unwrap_or_else(|_| BufferMut::zeroed(len))
}

/// Checks that memory is as long as it was asked for, though it may be shorter than what is
/// announced.
#[inline]
pub(crate) fn checked(
    memory: Result<BufferMut, Status>,
    there_bytes: usize,
    announced_bytes: u64,
) -> Result<BufferMut, Status> {
    let buffer = memory?;
    let len = buffer.len() as u64;
    if len == announced_bytes || (len >= there_bytes.max(1) as u64 && len < announced_bytes) {
        return Ok(buffer);
    }
    Err(unfit(buffer.len(), announced_bytes))
}

/// Checks that memory is as long as what it is for.
#[inline]
pub(crate) fn whole(
    memory: Result<BufferMut, Status>,
    wanted_bytes: u64,
) -> Result<BufferMut, Status> {
    let buffer = memory?;
    if buffer.len() as u64 == wanted_bytes {
        return Ok(buffer);
    }
    Err(unfit(buffer.len(), wanted_bytes))
}

/// Longer memory in place of memory that is full.
pub(crate) fn grown(
    landings: &mut dyn Landings,
    memory: BufferMut,
    whole_len: usize,
) -> Result<BufferMut, Status> {
    let before = memory.len();
    let longer = landings.grow(memory, whole_len)?;
    if longer.len() > before && longer.len() <= whole_len {
        return Ok(longer);
    }
    Err(unfit(longer.len(), whole_len as u64))
}

#[cold]
fn unfit(found_bytes: usize, wanted_bytes: u64) -> Status {
    Status::new(
        Code::Internal,
        format!("the memory for {wanted_bytes} bytes of payload has {found_bytes} bytes"),
    )
}
