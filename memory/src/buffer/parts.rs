//! A buffer that is cut into parts, whose references are counted at once.
#![expect(unsafe_code, reason = "references that were counted become buffers")]

use std::ops::Range;

use super::Buffer;

/// A buffer that is about to be cut into parts, whose references are counted at once: each part
/// then costs a count less.
#[derive(Debug)]
pub struct Parts {
    whole: Buffer,
    /// References to its owner that are counted, and not made yet.
    spare: u32,
}

impl Parts {
    /// Most parts that are counted at once.
    pub const COUNT_MAX: u32 = 1 << 16;

    /// Prepares for so many parts, of which more or fewer may be made. Of the memory of an arena,
    /// or of a [lender](crate::Leases); other memory is shared part by part.
    ///
    /// # Panics
    /// If `count` is above [`Parts::COUNT_MAX`].
    pub fn new(whole: Buffer, count: u32) -> Self {
        // Few beside those that would make a count overflow.
        assert!(
            count <= Self::COUNT_MAX,
            "{count} references at once, allowed are {}",
            Self::COUNT_MAX
        );
        let spare = if whole.owner.retain(count) { count } else { 0 };
        Self { whole, spare }
    }

    /// All of the buffer.
    #[inline]
    pub fn whole(&self) -> &Buffer {
        &self.whole
    }

    /// The part of the buffer in `range`, as of [`Buffer::slice`].
    ///
    /// # Panics
    /// If the range reaches beyond the buffer.
    #[inline]
    pub fn cut(&mut self, range: Range<usize>) -> Buffer {
        match self.cut_counted(range.clone()) {
            Some(part) => part,
            None => self.whole.slice(range),
        }
    }

    /// The part of the buffer in `range`, as of [`Parts::cut`], if one of the references that were
    /// counted at once is left for it. An empty part needs none.
    ///
    /// # Panics
    /// If the range reaches beyond the buffer.
    #[inline]
    pub fn cut_counted(&mut self, range: Range<usize>) -> Option<Buffer> {
        if range.start > range.end || range.end > self.whole.len {
            out_of_range(range, self.whole.len);
        }
        if range.is_empty() {
            return None;
        }
        self.spare = self.spare.checked_sub(1)?;
        Some(Buffer {
            // SAFETY: inside of the buffer, as asserted.
            start: unsafe { self.whole.start.add(range.start) },
            len: range.len(),
            // SAFETY: one of the references that were counted; those of this kind are copies of
            // each other. Made as a whole, for what is put together of parts cannot be moved until
            // they are written.
            owner: unsafe { std::ptr::read(&self.whole.owner) },
        })
    }
}

/// Out of the way, so that the range is not written to memory for the text of the panic.
#[cold]
fn out_of_range(range: Range<usize>, len: usize) -> ! {
    panic!("part {range:?} of a buffer of {len} bytes")
}

impl Drop for Parts {
    #[inline]
    fn drop(&mut self) {
        if self.spare > 0 {
            self.whole.owner.discount(self.spare);
        }
    }
}
