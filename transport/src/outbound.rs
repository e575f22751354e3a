//! Frames on their way out of a link that sends them as a stream of bytes.

use std::collections::VecDeque;

use grpcxx_memory::Buffer;

use crate::Frame;

/// Frames on their way out of one link, and how far the first of them has come.
///
/// Invariant: `segment` and `offset_bytes` name a byte of the first frame, or its end if that frame
/// is empty; both are 0 if there is none.
#[derive(Debug, Default)]
pub struct Outbound {
    frames: VecDeque<Box<Frame>>,
    segment: usize,
    offset_bytes: usize,
}

/// Bytes of one frame that lie next to each other.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// What is to be sent.
    pub bytes: &'a [u8],
    frame: &'a Frame,
    segment: usize,
}

impl Outbound {
    /// Frames that have not left as a whole.
    #[inline]
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether there is no such frame.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Adds a frame behind the others.
    #[inline]
    pub fn push(&mut self, frame: Box<Frame>) {
        self.frames.push_back(frame);
    }

    /// Takes the first frame out, sent or not.
    #[inline]
    pub fn pop(&mut self) -> Option<Box<Frame>> {
        self.segment = 0;
        self.offset_bytes = 0;
        self.frames.pop_front()
    }

    /// The first piece that is to be sent and is not empty.
    #[inline]
    pub fn piece(&self) -> Option<Piece<'_>> {
        self.pieces(usize::MAX).next()
    }

    /// What is still to be sent, in order, without empty pieces, cut off after `bytes_max` bytes.
    #[inline]
    pub fn pieces(&self, bytes_max: usize) -> Pieces<'_> {
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
    ///
    /// # Panics
    /// If so many bytes were not queued.
    #[inline]
    pub fn advance(&mut self, mut bytes: usize, mut complete: impl FnMut(Box<Frame>)) {
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

impl<'a> Piece<'a> {
    /// The payload that all of the bytes are, if nothing of it was sent yet.
    #[inline]
    pub fn payload(&self) -> Option<&'a Buffer> {
        let payload = self.frame.payload(self.segment)?;
        (payload.len() == self.bytes.len()).then_some(payload)
    }
}

/// See [`Outbound::pieces`].
#[derive(Debug)]
pub struct Pieces<'a> {
    outbound: &'a Outbound,
    frame: usize,
    segment: usize,
    offset_bytes: usize,
    left_bytes: usize,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    #[inline]
    fn next(&mut self) -> Option<Piece<'a>> {
        while self.left_bytes > 0 {
            let frame = self.outbound.frames.get(self.frame)?;
            if self.segment == frame.segment_count() {
                self.frame += 1;
                self.segment = 0;
                continue;
            }
            let segment = self.segment;
            let bytes = &frame.segment(segment)[self.offset_bytes..];
            self.segment += 1;
            self.offset_bytes = 0;
            if !bytes.is_empty() {
                let bytes = &bytes[..bytes.len().min(self.left_bytes)];
                self.left_bytes -= bytes.len();
                return Some(Piece {
                    bytes,
                    frame,
                    segment,
                });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                let pieces = outbound.pieces(step);
                let taken: Vec<u8> = pieces.flat_map(|piece| piece.bytes).copied().collect();
                assert!(taken.len() == step || sent.len() + taken.len() == all.len());
                sent.extend_from_slice(&taken);
                outbound.advance(taken.len(), |frame| tokens.push(frame.token));
            }
            assert_eq!(sent, all);
            assert_eq!(tokens, [0, 1, 2, 3, 4, 5]);
        }
    }

    #[test]
    fn a_piece_is_payload_if_all_of_it_is() {
        let mut outbound = Outbound::default();
        let mut frame = Box::new(Frame::new());
        frame.bytes_mut().push(1);
        frame.attach(Buffer::from(vec![2; 5]));
        outbound.push(frame);
        let is_payload = |piece: Piece<'_>| (piece.bytes.len(), piece.payload().is_some());
        let pieces = |outbound: &Outbound, bytes_max| -> Vec<_> {
            outbound.pieces(bytes_max).map(is_payload).collect()
        };
        assert_eq!(pieces(&outbound, 9), [(1, false), (5, true)]);
        assert_eq!(pieces(&outbound, 5), [(1, false), (4, false)]);
        outbound.advance(2, |_| panic!("it has bytes left"));
        assert_eq!(outbound.piece().map(is_payload), Some((4, false)));
    }

    #[test]
    fn an_empty_frame_is_complete_without_a_byte() {
        let mut outbound = Outbound::default();
        outbound.push(Box::default());
        assert!(outbound.piece().is_none());
        let mut count = 0;
        outbound.advance(0, |_| count += 1);
        assert_eq!((count, outbound.len()), (1, 0));
    }
}
