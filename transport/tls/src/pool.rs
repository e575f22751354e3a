//! Memory that links use while they need it: for records that come, and for records that leave.

use grpcxx_memory::BufferMut;
use grpcxx_transport::Frame;

use crate::record::{FULL_RECORD_BYTES, RECORD_BYTES_MAX};
use crate::session::sealed_bytes_max;

/// Memory of the links of one transport, used over and over.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Each for one record.
    short: Vec<BufferMut>,
    /// Each for [`LONG_RECORDS`] records.
    long: Vec<BufferMut>,
    /// How many more long ones may be made.
    long_left: usize,
    /// Frames for some small records.
    #[expect(clippy::vec_box, reason = "links take boxes")]
    small: Vec<Box<Frame>>,
    /// Frames for [`SEALED_RECORDS`] records.
    #[expect(clippy::vec_box, reason = "links take boxes")]
    large: Vec<Box<Frame>>,
}

impl Pool {
    pub(crate) fn new(staging_bytes: usize) -> Self {
        Self {
            short: Vec::new(),
            long: Vec::new(),
            long_left: staging_bytes / LONG_BYTES,
            small: Vec::new(),
            large: Vec::new(),
        }
    }

    /// Memory for so many bytes that come, or for fewer, but for a record at least.
    pub(crate) fn staging(&mut self, wanted_bytes: usize) -> BufferMut {
        if wanted_bytes > RECORD_BYTES_MAX
            && let Some(buffer) = self.long()
        {
            return buffer;
        }
        let made = || BufferMut::zeroed(RECORD_BYTES_MAX);
        self.short.pop().unwrap_or_else(made)
    }

    fn long(&mut self) -> Option<BufferMut> {
        if let Some(buffer) = self.long.pop() {
            return Some(buffer);
        }
        self.long_left = self.long_left.checked_sub(1)?;
        Some(BufferMut::zeroed(LONG_BYTES))
    }

    /// Takes memory back.
    pub(crate) fn put_staging(&mut self, buffer: BufferMut) {
        if buffer.len() == LONG_BYTES {
            self.long.push(buffer);
        } else if buffer.len() == RECORD_BYTES_MAX && self.short.len() < KEPT_MAX {
            self.short.push(buffer);
        }
    }

    /// A frame for so many bytes of text, or for fewer.
    pub(crate) fn frame(&mut self, text_bytes: usize) -> Box<Frame> {
        let (kept, bytes) = if text_bytes <= SMALL_TEXT_BYTES {
            (&mut self.small, SMALL_BYTES)
        } else {
            (&mut self.large, sealed_bytes_max(SEALED_RECORDS))
        };
        kept.pop().unwrap_or_else(|| {
            let mut frame = Box::new(Frame::new());
            frame.bytes_mut().reserve_exact(bytes);
            frame
        })
    }

    /// Takes a frame back.
    pub(crate) fn put_frame(&mut self, mut frame: Box<Frame>) {
        frame.clear();
        let kept = if frame.bytes_mut().capacity() >= sealed_bytes_max(SEALED_RECORDS) {
            &mut self.large
        } else {
            &mut self.small
        };
        if kept.len() < KEPT_MAX {
            kept.push(frame);
        }
    }
}

/// Records that are read at once where much is to come.
const LONG_RECORDS: usize = 16;
const LONG_BYTES: usize = LONG_RECORDS * FULL_RECORD_BYTES;

/// Records that leave together.
pub(crate) const SEALED_RECORDS: usize = 8;

/// Text that a small frame has room for, sealed.
const SMALL_TEXT_BYTES: usize = 2048;

/// So much text needs a large frame.
pub(crate) const LARGE_TEXT_BYTES: usize = SMALL_TEXT_BYTES + 1;

const SMALL_BYTES: usize = SMALL_TEXT_BYTES + 256;

/// Pieces of memory of each kind that are kept for later.
const KEPT_MAX: usize = 64;
