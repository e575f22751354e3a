use grpcxx_memory::Buffer;

use crate::Frame;

/// An endless byte stream whose content is known at each offset, so that a byte that is lost,
/// repeated or out of place is noticed where it is read.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pattern: Buffer,
}

/// A part of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) enum Piece {
    /// This many bytes in the frame's own memory.
    Copied(usize),
    /// This many bytes spliced in by reference.
    Spliced(usize),
}

impl Piece {
    pub(super) fn len(self) -> usize {
        match self {
            Self::Copied(bytes) | Self::Spliced(bytes) => bytes,
        }
    }
}

impl Stream {
    pub(super) fn new() -> Self {
        let mut random = fastrand::Rng::with_seed(PATTERN_BYTES as u64);
        let mut pattern = vec![0; PATTERN_BYTES];
        random.fill(&mut pattern);
        Self {
            pattern: pattern.into(),
        }
    }

    /// Appends `piece` of the stream from `offset` to `frame`.
    pub(super) fn append(&self, frame: &mut Frame, offset: u64, piece: Piece) {
        for (from, to) in spans(offset, piece.len()) {
            match piece {
                Piece::Copied(_) => frame.bytes_mut().extend_from_slice(&self.pattern[from..to]),
                Piece::Spliced(_) => frame.attach(self.pattern.slice(from..to)),
            }
        }
    }

    /// The index of the first byte that is not the stream's at `offset`.
    pub(super) fn mismatch(&self, offset: u64, bytes: &[u8]) -> Option<usize> {
        let mut seen = 0;
        for (from, to) in spans(offset, bytes.len()) {
            let (expected, found) = (&self.pattern[from..to], &bytes[seen..seen + to - from]);
            if expected != found {
                let within = expected.iter().zip(found).position(|(e, f)| e != f);
                return within.map(|index| seen + index);
            }
            seen += to - from;
        }
        None
    }
}

/// The parts of the pattern that make up `len` bytes of the stream from `offset`.
fn spans(offset: u64, len: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut at = (offset % PATTERN_BYTES as u64) as usize;
    let mut left = len;
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let count = left.min(PATTERN_BYTES - at);
        let span = (at, at + count);
        left -= count;
        at = 0;
        Some(span)
    })
}

/// A prime, so that no usual buffer size hides a shift by its length.
const PATTERN_BYTES: usize = 1_048_573;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_carries_the_stream_and_a_shift_is_noticed() {
        let stream = Stream::new();
        let mut frame = Frame::new();
        let offset = PATTERN_BYTES as u64 * 3 - 7;
        stream.append(&mut frame, offset, Piece::Copied(20));
        stream.append(&mut frame, offset + 20, Piece::Spliced(PATTERN_BYTES + 5));
        let mut bytes = frame.segments().collect::<Vec<_>>().concat();
        assert_eq!(bytes.len() as u64, frame.len_bytes());
        assert_eq!(stream.mismatch(offset, &bytes), None);
        assert!(stream.mismatch(offset + 1, &bytes).is_some());
        bytes[1234] ^= 1;
        assert_eq!(stream.mismatch(offset, &bytes), Some(1234));
    }
}
