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
    pooled_frames: usize,
    pooled_frame_bytes: usize,
}

impl Outgoing {
    pub(super) fn new(limits: &ConnectionLimits) -> Self {
        Self {
            queue: VecDeque::new(),
            pool: Vec::new(),
            pooled_frames: limits.pooled_frames,
            pooled_frame_bytes: limits.pooled_frame_bytes,
        }
    }

    pub(super) fn empty_frame(&mut self) -> Box<Frame> {
        self.pool.pop().unwrap_or_default()
    }

    pub(super) fn recycle(&mut self, mut frame: Box<Frame>) {
        if self.pool.len() < self.pooled_frames
            && frame.bytes_mut().capacity() <= self.pooled_frame_bytes
        {
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
