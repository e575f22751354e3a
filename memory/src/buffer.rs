use std::ops::{Deref, DerefMut, RangeBounds};

use bytes::Bytes;

/// Memory with one owner, which may write it.
#[derive(Debug, Default)]
pub struct BufferMut {
    bytes: Vec<u8>,
}

/// Read-only memory with any number of owners.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buffer {
    bytes: Bytes,
}

impl BufferMut {
    /// `len` zero bytes from the heap.
    pub fn zeroed(len: usize) -> Self {
        Self {
            bytes: vec![0; len],
        }
    }

    /// Gives up the right to write.
    pub fn freeze(self) -> Buffer {
        Buffer::from(self.bytes)
    }

    /// Shortens the buffer to its first `len` bytes; longer values change nothing.
    pub fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }
}

impl Deref for BufferMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for BufferMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl From<Vec<u8>> for BufferMut {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes }
    }
}

impl Buffer {
    /// An empty buffer, which owns nothing.
    pub const fn new() -> Self {
        Self {
            bytes: Bytes::new(),
        }
    }

    /// The part of this buffer in `range`, sharing the same memory.
    ///
    /// # Panics
    /// If the range reaches beyond the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        Self {
            bytes: self.bytes.slice(range),
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            bytes: bytes.into(),
        }
    }
}

impl From<Bytes> for Buffer {
    fn from(bytes: Bytes) -> Self {
        Self { bytes }
    }
}

impl From<Buffer> for Bytes {
    fn from(buffer: Buffer) -> Self {
        buffer.bytes
    }
}

impl From<&'static [u8]> for Buffer {
    fn from(bytes: &'static [u8]) -> Self {
        Self {
            bytes: Bytes::from_static(bytes),
        }
    }
}
