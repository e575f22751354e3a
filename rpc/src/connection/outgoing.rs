use std::collections::VecDeque;

use grpcxx_transport::Frame;

use super::ConnectionLimits;

/// Frames that wait for the link, and empty ones that wait for use.
#[derive(Debug)]
#[expect(
    clippy::vec_box,
    reason = "frames travel boxed, and their boxes are reused"
)]
pub(super) struct Outgoing {
    queue: VecDeque<Box<Frame>>,
    pool: Vec<Box<Frame>>,
    /// Memory of the frames in the pool.
    pool_bytes: usize,
    pooled_frames: usize,
    pooled_frame_bytes: usize,
    pooled_bytes: usize,
}

impl Outgoing {
    pub(super) fn new(limits: &ConnectionLimits) -> Self {
        Self {
            queue: VecDeque::new(),
            pool: Vec::new(),
            pool_bytes: 0,
            pooled_frames: limits.pooled_frames,
            pooled_frame_bytes: limits.pooled_frame_bytes,
            pooled_bytes: limits.pooled_bytes,
        }
    }

    pub(super) fn empty_frame(&mut self) -> Box<Frame> {
        let Some(mut frame) = self.pool.pop() else {
            return Box::default();
        };
        self.pool_bytes -= frame.bytes_mut().capacity();
        frame
    }

    pub(super) fn recycle(&mut self, mut frame: Box<Frame>) {
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

    pub(super) fn push(&mut self, frame: Box<Frame>) {
        self.queue.push_back(frame);
    }

    pub(super) fn unpop(&mut self, frame: Box<Frame>) {
        self.queue.push_front(frame);
    }

    pub(super) fn pop(&mut self) -> Option<Box<Frame>> {
        self.queue.pop_front()
    }
}
