//! The frames that wait for the link, and empty ones for reuse.

use std::collections::VecDeque;

use grpcxx_transport::Frame;

use super::{ConnectionLimits, encode};
use crate::extensions::chunks::cutter::Cutter;
use crate::wire::{BUNDLE_BYTES_MAX, RecordCache};

/// Frames that wait for the link, and empty ones that wait for use.
#[derive(Debug)]
#[expect(
    clippy::vec_box,
    reason = "frames travel boxed, and their boxes are reused"
)]
pub(crate) struct Outgoing {
    queue: VecDeque<Box<Frame>>,
    /// The frame behind those of the queue, if more may be appended to it.
    open: Option<Box<Frame>>,
    pub(crate) cutter: Cutter,
    pub(crate) records: RecordCache,
    pool: Vec<Box<Frame>>,
    /// Memory of the frames in the pool.
    pool_bytes: usize,
    pooled_frames: usize,
    pooled_frame_bytes: usize,
    pooled_bytes: usize,
}

impl Outgoing {
    pub(crate) fn new(limits: &ConnectionLimits) -> Self {
        Self {
            queue: VecDeque::new(),
            open: None,
            cutter: Cutter::new(limits),
            records: RecordCache::default(),
            pool: Vec::new(),
            pool_bytes: 0,
            pooled_frames: limits.pooled_frames,
            pooled_frame_bytes: limits.pooled_frame_bytes,
            pooled_bytes: limits.pooled_bytes,
        }
    }

    pub(crate) fn empty_frame(&mut self) -> Box<Frame> {
        let Some(mut frame) = self.pool.pop() else {
            return Box::default();
        };
        self.pool_bytes -= frame.bytes_mut().capacity();
        frame
    }

    pub(crate) fn recycle(&mut self, frame: Box<Frame>) {
        self.cutter.took_back(&frame);
        self.reuse(frame);
    }

    fn reuse(&mut self, mut frame: Box<Frame>) {
        let bytes = frame.bytes_mut().capacity();
        if self.pool.len() < self.pooled_frames
            && bytes <= self.pooled_frame_bytes
            && bytes <= self.pooled_bytes.saturating_sub(self.pool_bytes)
        {
            self.pool_bytes += bytes;
            frame.clear();
            self.pool.push(frame);
        }
    }

    pub(crate) fn push(&mut self, frame: Box<Frame>) {
        self.close();
        self.queue.push_back(frame);
    }

    /// The last frame, if it is one that `len` bytes may be appended to, or else a new one. Its
    /// header says how long it is once it leaves.
    #[inline(always)]
    pub(crate) fn bundle(&mut self, len: usize, begin: impl FnOnce(&mut Frame)) -> &mut Frame {
        let last = self.open.as_ref();
        if last.is_none_or(|frame| frame.bytes().len() + len > BUNDLE_BYTES) {
            self.open();
            let frame = self.open.as_mut().expect("it was just opened");
            begin(frame);
        }
        self.open.as_mut().expect("there is one at least")
    }

    /// Opens an empty frame behind all others.
    #[inline(never)]
    fn open(&mut self) {
        self.close();
        self.open = Some(self.empty_frame());
    }

    /// Lets nothing more be appended to the last frame.
    fn close(&mut self) {
        if let Some(mut frame) = self.open.take() {
            encode::note_length(&mut frame);
            self.queue.push_back(frame);
        }
    }

    pub(crate) fn unpop(&mut self, frame: Box<Frame>) {
        self.queue.push_front(frame);
    }

    /// Whether a frame waits.
    #[inline]
    pub(crate) fn has_frames(&self) -> bool {
        !self.queue.is_empty() || self.open.is_some() || self.cutter.has_work()
    }

    /// The next frame: a chunk, or what is to be given to [`Outgoing::cut`].
    pub(crate) fn pop(&mut self) -> Option<Box<Frame>> {
        if self.queue.is_empty() {
            self.close();
        }
        if self.cutter.has_work() {
            return self.take_between();
        }
        let frame = self.queue.pop_front()?;
        if self.cutter.is_long(&frame) {
            self.cutter.push(frame);
            return self.take_between();
        }
        Some(frame)
    }

    /// The next frame, if one is cut or is to be.
    #[cold]
    fn take_between(&mut self) -> Option<Box<Frame>> {
        self.close();
        loop {
            if self.cutter.is_due(self.queue.is_empty()) {
                let frame = self.cutter.pop();
                return Some(frame.unwrap_or_else(|| self.chunk()));
            }
            let frame = self.queue.pop_front()?;
            if !self.cutter.is_long(&frame) {
                self.cutter.let_pass();
                return Some(frame);
            }
            self.cutter.push(frame);
        }
    }

    /// The frame, or its first chunk if it is long. The last chunk will have this token.
    #[inline]
    pub(crate) fn cut(&mut self, frame: Box<Frame>, token: u64) -> Box<Frame> {
        if self.cutter.is_long(&frame) {
            return self.begin_to_cut(frame, token);
        }
        frame
    }

    #[cold]
    fn begin_to_cut(&mut self, mut frame: Box<Frame>, token: u64) -> Box<Frame> {
        frame.token = token;
        self.cutter.begin(frame);
        self.chunk()
    }

    /// Gives back a frame that the link does not have, and of which it has not had all.
    pub(crate) fn abandon(&mut self) -> Option<Box<Frame>> {
        self.close();
        let frame = self.cutter.abandon();
        frame.or_else(|| self.queue.pop_front())
    }

    fn chunk(&mut self) -> Box<Frame> {
        let mut chunk = self.empty_frame();
        if let Some(whole) = self.cutter.cut(&mut chunk) {
            self.reuse(whole);
        }
        chunk
    }
}

/// Length from which a frame that is shared gets no more, so that its first part does not wait for
/// its last.
const BUNDLE_BYTES: usize = 16 << 10;

const _: () = assert!(BUNDLE_BYTES <= BUNDLE_BYTES_MAX);
