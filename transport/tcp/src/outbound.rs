use std::collections::VecDeque;

use grpcxx_transport::Frame;

/// Frames on their way out of one link, and how far the first of them has come.
///
/// Invariant: `segment` and `offset_bytes` name a byte of the first frame, or its end if that frame
/// is empty; both are 0 if there is none.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    frames: VecDeque<Box<Frame>>,
    segment: usize,
    offset_bytes: usize,
}

impl Outbound {
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(crate) fn push(&mut self, frame: Box<Frame>) {
        self.frames.push_back(frame);
    }

    /// Takes the first frame out, sent or not.
    pub(crate) fn pop(&mut self) -> Option<Box<Frame>> {
        self.segment = 0;
        self.offset_bytes = 0;
        self.frames.pop_front()
    }

    /// What is still to be sent, in order, without empty pieces, cut off after `bytes_max` bytes.
    pub(crate) fn pieces(&self, bytes_max: usize) -> Pieces<'_> {
        Pieces {
            outbound: self,
            frame: 0,
            segment: self.segment,
            offset_bytes: self.offset_bytes,
            left_bytes: bytes_max,
        }
    }

    /// Notes that `bytes` more bytes have left, and hands over the frames that are complete with
    /// them.
    pub(crate) fn advance(&mut self, mut bytes: usize, mut complete: impl FnMut(Box<Frame>)) {
        while let Some(frame) = self.frames.front() {
            while self.segment < frame.segment_count() {
                let left = frame.segment(self.segment).len() - self.offset_bytes;
                if bytes < left {
                    self.offset_bytes += bytes;
                    return;
                }
                bytes -= left;
                self.segment += 1;
                self.offset_bytes = 0;
            }
            if let Some(frame) = self.pop() {
                complete(frame);
            }
        }
        assert_eq!(bytes, 0, "more bytes left than were queued");
    }
}

/// See [`Outbound::pieces`].
#[derive(Debug)]
pub(crate) struct Pieces<'a> {
    outbound: &'a Outbound,
    frame: usize,
    segment: usize,
    offset_bytes: usize,
    left_bytes: usize,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        while self.left_bytes > 0 {
            let frame = self.outbound.frames.get(self.frame)?;
            if self.segment == frame.segment_count() {
                self.frame += 1;
                self.segment = 0;
                continue;
            }
            let piece = &frame.segment(self.segment)[self.offset_bytes..];
            self.segment += 1;
            self.offset_bytes = 0;
            if !piece.is_empty() {
                let piece = &piece[..piece.len().min(self.left_bytes)];
                self.left_bytes -= piece.len();
                return Some(piece);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use grpcxx_memory::Buffer;

    fn outbound() -> (Outbound, Vec<u8>) {
        let mut outbound = Outbound::default();
        let mut all = Vec::new();
        for index in 0..6u8 {
            let mut frame = Box::new(Frame::new());
            frame.token = u64::from(index);
            if index != 2 {
                frame.bytes_mut().extend_from_slice(&[index; 3]);
                frame.attach(Buffer::from(vec![index + 10; usize::from(index) * 5]));
                frame.bytes_mut().push(index);
            }
            all.extend(frame.segments().flatten().copied());
            outbound.push(frame);
        }
        (outbound, all)
    }

    #[test]
    fn frames_leave_in_order_whatever_the_steps() {
        for step in 1..40 {
            let (mut outbound, all) = outbound();
            let (mut sent, mut tokens) = (Vec::new(), Vec::new());
            while !outbound.is_empty() {
                let taken: Vec<u8> = outbound.pieces(step).flatten().copied().collect();
                assert!(taken.len() == step || sent.len() + taken.len() == all.len());
                sent.extend_from_slice(&taken);
                outbound.advance(taken.len(), |frame| tokens.push(frame.token));
            }
            assert_eq!(sent, all);
            assert_eq!(tokens, [0, 1, 2, 3, 4, 5]);
        }
    }

    #[test]
    fn an_empty_frame_is_complete_without_a_byte() {
        let mut outbound = Outbound::default();
        outbound.push(Box::default());
        assert_eq!(outbound.pieces(usize::MAX).count(), 0);
        let mut count = 0;
        outbound.advance(0, |_| count += 1);
        assert_eq!((count, outbound.len()), (1, 0));
    }
}
