use std::collections::VecDeque;

use grpcxx_memory::Buffer;
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

/// What is to be sent next.
#[derive(Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) bytes: &'a [u8],
    /// The payload that all of `bytes` are, if nothing of it was sent yet.
    pub(crate) payload: Option<&'a Buffer>,
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

    /// The next piece that is not empty.
    pub(crate) fn piece(&self) -> Option<Piece<'_>> {
        let (mut segment, mut offset) = (self.segment, self.offset_bytes);
        for frame in &self.frames {
            while segment < frame.segment_count() {
                let bytes = &frame.segment(segment)[offset..];
                if !bytes.is_empty() {
                    let payload = frame.payload(segment).filter(|_| offset == 0);
                    return Some(Piece { bytes, payload });
                }
                segment += 1;
                offset = 0;
            }
            segment = 0;
        }
        None
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_leave_in_order_whatever_the_steps() {
        for step in 1..40 {
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
            let (mut sent, mut tokens) = (Vec::new(), Vec::new());
            while let Some(piece) = outbound.piece() {
                assert!(
                    piece
                        .payload
                        .is_none_or(|whole| whole.len() == piece.bytes.len())
                );
                let taken = piece.bytes.len().min(step);
                sent.extend_from_slice(&piece.bytes[..taken]);
                outbound.advance(taken, |frame| tokens.push(frame.token));
            }
            assert_eq!(sent, all);
            assert_eq!(tokens, [0, 1, 2, 3, 4, 5]);
        }
    }
}
