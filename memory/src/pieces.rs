#![expect(
    unsafe_code,
    reason = "parts of one buffer become buffers of their own"
)]
//! One buffer as several that do not overlap, and its return when all of them are gone.

use std::sync::{Arc, Mutex};

use crate::BufferMut;

/// A buffer that was split, until the last of its pieces is gone.
struct Whole<F: FnOnce(BufferMut)> {
    buffer: Option<BufferMut>,
    returned: Mutex<Option<F>>,
}

impl BufferMut {
    /// Splits the buffer into pieces that end at `ends`, so that each can be written, frozen and
    /// sent by itself. `returned` gets the whole buffer back, on any thread, when the last piece
    /// and the last buffer over a piece are gone.
    ///
    /// # Panics
    /// Unless `ends` ascend and the last one is the length of the buffer.
    pub fn split(
        mut self,
        ends: &[usize],
        returned: impl FnOnce(Self) + Send + 'static,
    ) -> Vec<Self> {
        let len = self.len();
        let mut last = 0;
        for &end in ends {
            assert!(
                last <= end && end <= len,
                "a piece ends at {end}, behind {last}"
            );
            last = end;
        }
        assert_eq!(last, len, "the last piece ends with the buffer");
        let start = self.start_mut();
        let whole = Arc::new(Whole {
            buffer: Some(self),
            returned: Mutex::new(Some(returned)),
        });
        let mut first = 0;
        let piece = |&end: &usize| {
            let (at, len) = (first, end - first);
            first = end;
            // SAFETY: the range lies in the buffer, as was asserted, so the place is inside of it.
            // No two ranges overlap, and the buffer that owns the memory is not touched before
            // `whole`, which each piece keeps, is dropped.
            unsafe { Self::from_shared(start.add(at), len, Arc::clone(&whole) as _) }
        };
        ends.iter().map(piece).collect()
    }
}

impl<F: FnOnce(BufferMut)> Drop for Whole<F> {
    fn drop(&mut self) {
        let returned = self.returned.get_mut();
        let returned = returned.unwrap_or_else(std::sync::PoisonError::into_inner);
        if let (Some(buffer), Some(returned)) = (self.buffer.take(), returned.take()) {
            returned(buffer);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::Buffer;

    fn split(len: usize, ends: &[usize]) -> (Vec<BufferMut>, mpsc::Receiver<BufferMut>) {
        let (sender, receiver) = mpsc::channel();
        let pieces = BufferMut::zeroed(len).split(ends, move |whole| sender.send(whole).unwrap());
        (pieces, receiver)
    }

    #[test]
    fn what_is_written_to_pieces_is_in_the_whole() {
        let (mut pieces, whole) = split(6, &[1, 1, 6]);
        let lens: Vec<usize> = pieces.iter().map(|piece| piece.len()).collect();
        assert_eq!(lens, [1, 0, 5]);
        pieces[0].copy_from_slice(&[7]);
        pieces[2].copy_from_slice(&[1, 2, 3, 4, 5]);
        let shared: Vec<Buffer> = pieces.into_iter().map(BufferMut::freeze).collect();
        let last = shared[2].slice(1..3);
        drop(shared);
        assert!(whole.try_recv().is_err());
        assert_eq!(last[..], [2, 3]);
        drop(last);
        assert_eq!(whole.try_recv().unwrap()[..], [7, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_buffer_without_pieces_comes_back_at_once() {
        let (pieces, whole) = split(0, &[]);
        assert!(pieces.is_empty());
        assert!(whole.try_recv().unwrap().is_empty());
    }

    #[test]
    #[should_panic(expected = "the last piece ends with the buffer")]
    fn pieces_leave_nothing_out() {
        drop(split(4, &[1, 3]));
    }
}
