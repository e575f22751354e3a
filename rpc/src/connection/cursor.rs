use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_transport::{Landing, Next};

/// The bytes that a link shows, and how far they are used.
#[derive(Debug)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at_byte: usize,
}

/// What became of memory that wants bytes.
#[derive(Debug)]
pub(crate) enum Filled {
    /// All bytes were there.
    Whole(Buffer),
    /// The rest has to come from the link.
    Partly(Landing),
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at_byte: 0 }
    }

    pub(crate) fn consumed_bytes(&self) -> usize {
        self.at_byte
    }

    /// Takes an array, if all of it is there.
    pub(crate) fn array<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let array = self.bytes[self.at_byte..].first_chunk()?;
        self.at_byte += N;
        Some(array)
    }

    /// Shows the next `len` bytes, if all of them are there, and takes none.
    pub(crate) fn peek(&self, len: usize) -> Option<&'a [u8]> {
        self.bytes[self.at_byte..].get(..len)
    }

    /// Shows all bytes that are left, and takes none.
    pub(crate) fn peek_rest(&self) -> &'a [u8] {
        &self.bytes[self.at_byte..]
    }

    /// A cursor of its own over the next bytes, at most so many. What it takes is not taken here.
    pub(crate) fn within(&self, bytes_max: u64) -> Self {
        let rest = self.peek_rest();
        let len = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        Self::new(&rest[..rest.len().min(len)])
    }

    /// A cursor of its own behind the next bytes, which are there.
    pub(crate) fn behind(&self, len: usize) -> Self {
        Self::new(&self.peek_rest()[len..])
    }

    /// Takes `len` bytes, if all of them are there.
    pub(crate) fn slice(&mut self, len: usize) -> Option<&'a [u8]> {
        let slice = self.bytes[self.at_byte..].get(..len)?;
        self.at_byte += len;
        Some(slice)
    }

    /// How many of the next `len` bytes are there.
    #[inline]
    pub(crate) fn there(&self, len: u64) -> usize {
        let there = self.bytes.len() - self.at_byte;
        usize::try_from(len).map_or(there, |len| len.min(there))
    }

    /// Moves bytes into memory for so many, or the first of them.
    pub(crate) fn fill(&mut self, buffer: BufferMut, whole_bytes: usize) -> Filled {
        self.fill_landing(Landing::new(buffer).announced(whole_bytes))
    }

    /// Moves bytes into the memory of a landing.
    pub(crate) fn fill_landing(&mut self, mut landing: Landing) -> Filled {
        self.at_byte += landing.fill_from(&self.bytes[self.at_byte..]);
        if landing.is_complete() {
            Filled::Whole(landing.into_shared())
        } else {
            Filled::Partly(landing)
        }
    }

    /// Drops `len` bytes; an order says how many of them the link has to drop.
    pub(crate) fn skip(&mut self, len: u64, then_at_least_bytes: usize) -> Option<Next> {
        let there = self.bytes.len() - self.at_byte;
        let count = usize::try_from(len).unwrap_or(usize::MAX).min(there);
        self.at_byte += count;
        match len - count as u64 {
            0 => None,
            bytes => Some(Next::Discard {
                bytes,
                then_at_least_bytes,
            }),
        }
    }
}
