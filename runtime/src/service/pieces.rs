//! Memory that prost encodes into, which takes long fields as they are.
#![expect(
    unsafe_code,
    reason = "a trait for memory that is not filled yet has to be implemented"
)]

use bytes::buf::UninitSlice;
use bytes::{Buf, BufMut};
use grpcxx_memory::Buffer;
use grpcxx_rpc::EnvelopeWriter;

/// An envelope to which prost writes a message. Fields of `Bytes` that are long are attached, so
/// that they are sent from where they lie.
pub(super) struct Pieces<'a>(pub(super) &'a mut EnvelopeWriter);

// SAFETY: all methods without a default are those of a vector, which keeps the contract; `put`
// writes the bytes of its source, in their order, behind those that were written before.
unsafe impl BufMut for Pieces<'_> {
    fn remaining_mut(&self) -> usize {
        // What is too long is refused when the envelope is sent. As with a vector, this tells how
        // much is there.
        isize::MAX as usize - self.0.len_bytes()
    }

    unsafe fn advance_mut(&mut self, count: usize) {
        // SAFETY: the caller has written so many bytes to what `chunk_mut` gave out, which is of
        // this vector.
        unsafe { self.0.bytes_mut().advance_mut(count) }
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        self.0.bytes_mut().chunk_mut()
    }

    fn put_u8(&mut self, byte: u8) {
        self.0.bytes_mut().push(byte);
    }

    fn put_slice(&mut self, source: &[u8]) {
        self.0.bytes_mut().extend_from_slice(source);
    }

    fn put<T: Buf>(&mut self, mut source: T) {
        if source.remaining() >= ATTACHED_BYTES_MIN {
            let whole = source.copy_to_bytes(source.remaining());
            return self.0.attach(Buffer::from(whole));
        }
        while source.has_remaining() {
            let chunk = source.chunk();
            self.0.bytes_mut().extend_from_slice(chunk);
            let len = chunk.len();
            source.advance(len);
        }
    }
}

/// Shorter fields are copied: a piece of its own costs more.
const ATTACHED_BYTES_MIN: usize = 4096;
