//! Frames on their way into records, and frames whose records are on their way to the peer.

use std::collections::VecDeque;

use grpcxx_transport::Frame;

/// Frames of one link, in their order.
///
/// Invariant: the first `sealed` frames are sealed as a whole; `segment` and `offset_bytes` name a
/// byte of the next, or its end.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    frames: VecDeque<Box<Frame>>,
    sealed: usize,
    segment: usize,
    offset_bytes: usize,
}

impl Outbound {
    /// Frames that have not left.
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether there is nothing to seal.
    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed == self.frames.len()
    }

    pub(crate) fn push(&mut self, frame: Box<Frame>) {
        self.frames.push_back(frame);
    }

    /// Takes the first frame out, sent or not.
    pub(crate) fn pop(&mut self) -> Option<Box<Frame>> {
        let frame = self.frames.pop_front()?;
        match self.sealed.checked_sub(1) {
            Some(sealed) => self.sealed = sealed,
            None => (self.segment, self.offset_bytes) = (0, 0),
        }
        Some(frame)
    }

    /// Appends up to so many bytes of what is not sealed to `out`. Returns the number of frames of
    /// which nothing is left.
    pub(crate) fn copy(&mut self, bytes_max: usize, out: &mut Vec<u8>) -> u64 {
        let (mut left_bytes, mut frames) = (bytes_max, 0);
        while let Some(frame) = self.frames.get(self.sealed) {
            while self.segment < frame.segment_count() {
                let piece = &frame.segment(self.segment)[self.offset_bytes..];
                if piece.len() > left_bytes {
                    out.extend_from_slice(&piece[..left_bytes]);
                    self.offset_bytes += left_bytes;
                    return frames;
                }
                out.extend_from_slice(piece);
                left_bytes -= piece.len();
                self.segment += 1;
                self.offset_bytes = 0;
            }
            (self.segment, self.offset_bytes) = (0, 0);
            self.sealed += 1;
            frames += 1;
        }
        frames
    }

    /// Bytes that are not sealed, counted up to so many.
    pub(crate) fn waiting_bytes(&self, bytes_max: usize) -> usize {
        let mut bytes = 0;
        for frame in self.frames.iter().skip(self.sealed) {
            bytes += usize::try_from(frame.len_bytes())
                .unwrap_or(usize::MAX)
                .min(bytes_max);
            if bytes >= bytes_max {
                return bytes_max;
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use grpcxx_memory::Buffer;

    #[test]
    fn frames_are_copied_in_order_whatever_the_steps() {
        for step in 1..40 {
            let (mut outbound, mut all) = (Outbound::default(), Vec::new());
            for index in 0..6u8 {
                let mut frame = Box::new(Frame::new());
                if index != 2 {
                    frame.bytes_mut().extend_from_slice(&[index; 3]);
                    frame.attach(Buffer::from(vec![index + 10; usize::from(index) * 5]));
                    frame.bytes_mut().push(index);
                }
                all.extend(frame.segments().flatten().copied());
                outbound.push(frame);
            }
            assert_eq!(outbound.waiting_bytes(usize::MAX), all.len());
            let (mut copied, mut frames) = (Vec::new(), 0);
            while !outbound.is_sealed() {
                let before = copied.len();
                frames += outbound.copy(step, &mut copied);
                assert!(copied.len() == before + step || copied.len() == all.len());
            }
            assert_eq!((copied, frames, outbound.len()), (all, 6, 6));
            while outbound.pop().is_some() {}
            assert!(outbound.is_sealed());
        }
    }
}
