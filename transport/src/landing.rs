use grpcxx_memory::{Buffer, BufferMut};

/// Memory on its way to being filled from a link.
#[derive(Debug)]
pub struct Landing {
    buffer: BufferMut,
    filled_bytes: usize,
    /// Where it is full, as far as the link is concerned.
    end_bytes: usize,
    /// Where it is complete; `buffer` may be a first part of that.
    whole_bytes: usize,
    is_replaceable: bool,
    replacement: Option<Buffer>,
    then_head_bytes: Option<u16>,
}

impl Landing {
    /// A landing that wants all of `buffer`.
    pub fn new(buffer: BufferMut) -> Self {
        Self {
            filled_bytes: 0,
            end_bytes: buffer.len(),
            whole_bytes: buffer.len(),
            buffer,
            is_replaceable: false,
            replacement: None,
            then_head_bytes: None,
        }
    }

    /// A landing that wants the bytes and not this very memory: a link that has them in memory of
    /// its own may hand that over instead, read-only. Ends in [`Landing::into_shared`].
    pub fn replaceable(buffer: BufferMut) -> Self {
        Self {
            is_replaceable: true,
            ..Self::new(buffer)
        }
    }

    /// This landing for the first part of so many bytes that are announced: when it is full it is
    /// not complete, and comes back for more memory ([`Landing::grow`]).
    ///
    /// # Panics
    /// If there is more memory than that.
    #[must_use]
    pub fn announced(self, whole_bytes: usize) -> Self {
        assert!(self.buffer.len() <= whole_bytes);
        Self {
            whole_bytes,
            ..self
        }
    }

    /// Exchanges the memory for longer memory with the same bytes at its start. `longer` is told
    /// how many bytes are wanted in the end.
    ///
    /// # Errors
    /// There is no longer memory, and that of the landing is gone.
    ///
    /// # Panics
    /// If it is shorter than before, or longer than what is wanted.
    pub fn grow<E>(
        self,
        longer: impl FnOnce(BufferMut, usize) -> Result<BufferMut, E>,
    ) -> Result<Self, E> {
        let buffer = longer(self.buffer, self.whole_bytes)?;
        assert!((self.filled_bytes..=self.whole_bytes).contains(&buffer.len()));
        Ok(Self {
            end_bytes: buffer.len(),
            buffer,
            ..self
        })
    }

    /// Lets the link show what follows the landing, at least so many bytes of it, before the
    /// landing is back: a link that fetches payload by itself can then fetch several pieces at
    /// once.
    ///
    /// Such landings come back in order, and before any later one. The answer to one that comes
    /// back after more was shown does not count.
    ///
    /// # Panics
    /// If that is far more than [`HEAD_BYTES_MAX`](crate::HEAD_BYTES_MAX).
    pub fn then_head(self, at_least_bytes: usize) -> Self {
        let bytes = u16::try_from(at_least_bytes);
        Self {
            then_head_bytes: Some(bytes.expect("a head has at most HEAD_BYTES_MAX bytes")),
            ..self
        }
    }

    /// What may be shown before the landing is back, if anything. Nothing as long as it lacks
    /// memory.
    pub fn then_head_bytes(&self) -> Option<usize> {
        let at_least_bytes = self.then_head_bytes?;
        (self.granted_bytes() == self.whole_bytes).then_some(usize::from(at_least_bytes))
    }

    /// This landing, full once so many more bytes are there, and nothing of what follows is shown
    /// before it is back: the rest comes later, with something else between.
    #[must_use]
    pub fn part(mut self, bytes: usize) -> Self {
        self.end_bytes -= self.remaining_bytes().saturating_sub(bytes);
        self.then_head_bytes = None;
        self
    }

    /// This landing, of which all is wanted again after a [`Landing::part`].
    #[must_use]
    pub fn whole(mut self) -> Self {
        self.end_bytes = self.granted_bytes();
        self
    }

    /// Fills the landing with memory that has the bytes already, in place of its own.
    ///
    /// # Errors
    /// The memory comes back: the landing is not replaceable, has bytes already, or is not as long.
    pub fn replace(&mut self, memory: Buffer) -> Result<(), Buffer> {
        let fits = self.is_replaceable() && self.filled_bytes == 0;
        if !fits || memory.len() != self.whole_bytes {
            return Err(memory);
        }
        self.filled_bytes = memory.len();
        self.end_bytes = memory.len();
        self.replacement = Some(memory);
        Ok(())
    }

    /// Whether memory that has all the bytes may fill it: [`Landing::replace`].
    pub fn is_replaceable(&self) -> bool {
        self.is_replaceable && self.end_bytes == self.buffer.len()
    }

    /// This landing, which no memory of the link may replace any more.
    #[must_use]
    pub fn fixed(self) -> Self {
        Self {
            is_replaceable: false,
            ..self
        }
    }

    /// Bytes that the memory which replaced it has beyond what it had memory for itself.
    pub fn replaced_beyond_bytes(&self) -> usize {
        let replacement = self.replacement.as_ref();
        replacement.map_or(0, |memory| memory.len() - self.buffer.len())
    }

    /// Bytes that are there.
    pub fn filled_bytes(&self) -> usize {
        self.filled_bytes
    }

    /// Bytes still wanted.
    pub fn remaining_bytes(&self) -> usize {
        self.end_bytes - self.filled_bytes
    }

    /// Whether all bytes are there that the link is to fill it with.
    pub fn is_full(&self) -> bool {
        self.remaining_bytes() == 0
    }

    /// Whether all bytes are there that are wanted in the end.
    pub fn is_complete(&self) -> bool {
        self.filled_bytes == self.whole_bytes
    }

    /// Bytes that are not there of those that are wanted in the end.
    pub fn missing_bytes(&self) -> usize {
        self.whole_bytes - self.filled_bytes
    }

    /// The part that is not filled yet. What was replaced has none.
    pub fn unfilled(&mut self) -> &mut [u8] {
        let end = self.end_bytes.min(self.buffer.len());
        &mut self.buffer[self.filled_bytes.min(end)..end]
    }

    /// Notes that `bytes` more bytes of [`Landing::unfilled`] hold data.
    ///
    /// # Panics
    /// If that is more than was unfilled.
    pub fn advance(&mut self, bytes: usize) {
        assert!(
            bytes <= self.remaining_bytes(),
            "{bytes} bytes landed where {} were wanted",
            self.remaining_bytes()
        );
        self.filled_bytes += bytes;
    }

    /// Copies as much of `bytes` as still fits and returns how much that was.
    pub fn fill_from(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.remaining_bytes());
        self.unfilled()[..count].copy_from_slice(&bytes[..count]);
        self.advance(count);
        count
    }

    /// Bytes that there is memory for.
    fn granted_bytes(&self) -> usize {
        match &self.replacement {
            Some(memory) => memory.len(),
            None => self.buffer.len(),
        }
    }

    /// The memory, filled or not.
    ///
    /// # Panics
    /// If it was replaced, which happens only to a [`Landing::replaceable`] one.
    pub fn into_buffer(self) -> BufferMut {
        assert!(
            self.replacement.is_none(),
            "whoever allows a replacement takes the bytes as shared memory"
        );
        self.buffer
    }

    /// The bytes, in the memory of the landing or in what replaced it.
    pub fn into_shared(self) -> Buffer {
        self.replacement.unwrap_or_else(|| self.buffer.freeze())
    }
}

/// What a link shall do with the bytes that come next.
#[derive(Debug)]
pub enum Next {
    /// Show them, once at least this many are there; at most
    /// [`HEAD_BYTES_MAX`](crate::HEAD_BYTES_MAX).
    Head {
        /// Fewest bytes worth showing, at least 1.
        at_least_bytes: usize,
    },
    /// Fill this memory with them.
    Land(Landing),
    /// Drop this many of them, then show at least as many as the second field says.
    Discard {
        /// Bytes to drop.
        bytes: u64,
        /// As in [`Next::Head`], for what follows.
        then_at_least_bytes: usize,
    },
    /// Take nothing from the link until [`Transport::resume`](crate::Transport::resume).
    Pause,
}

/// How far a handler came with the bytes it was shown.
#[derive(Debug)]
pub struct Progress {
    /// Bytes it is done with.
    pub consumed_bytes: usize,
    /// What it wants for the rest.
    pub next: Next,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_landing_takes_what_it_wants_and_no_more() {
        let mut landing = Landing::new(BufferMut::zeroed(5));
        assert_eq!(landing.fill_from(b"abc"), 3);
        landing.unfilled()[0] = b'd';
        landing.advance(1);
        assert_eq!((landing.filled_bytes(), landing.remaining_bytes()), (4, 1));
        assert_eq!(landing.fill_from(b"efg"), 1);
        assert!(landing.is_full());
        assert_eq!(&landing.into_buffer()[..], b"abcde");
    }

    #[test]
    fn only_a_replaceable_landing_of_the_same_length_is_replaced() {
        let other = Buffer::from(&b"12345"[..]);
        let mut fixed = Landing::new(BufferMut::zeroed(5));
        assert_eq!(fixed.replace(other.clone()), Err(other.clone()));
        let mut begun = Landing::replaceable(BufferMut::zeroed(5));
        begun.fill_from(b"a");
        assert!(begun.replace(other.clone()).is_err());
        assert_eq!(&begun.into_shared()[..], b"a\0\0\0\0");
        let mut longer = Landing::replaceable(BufferMut::zeroed(6));
        assert!(longer.replace(other.clone()).is_err());
        let mut landing = Landing::replaceable(BufferMut::zeroed(5));
        assert_eq!(landing.replace(other.clone()), Ok(()));
        assert!(landing.is_full());
        assert_eq!(landing.into_shared().as_ptr(), other.as_ptr());
    }

    #[test]
    fn a_landing_is_filled_in_parts() {
        let mut landing = Landing::replaceable(BufferMut::zeroed(5))
            .then_head(8)
            .part(3);
        assert_eq!(
            (landing.remaining_bytes(), landing.then_head_bytes()),
            (3, None)
        );
        assert!(landing.replace(Buffer::from(&b"123"[..])).is_err());
        assert!(landing.replace(Buffer::from(&b"12345"[..])).is_err());
        assert_eq!(landing.fill_from(b"abcde"), 3);
        assert!(landing.is_full());
        let mut landing = landing.whole();
        assert_eq!((landing.filled_bytes(), landing.remaining_bytes()), (3, 2));
        landing = landing.part(7);
        assert_eq!(landing.unfilled().len(), 2);
        assert_eq!(landing.fill_from(b"de"), 2);
        assert_eq!(&landing.into_shared()[..], b"abcde");
    }

    #[test]
    fn a_landing_grows_until_it_is_complete() {
        let mut landing = Landing::new(BufferMut::zeroed(2)).announced(5).then_head(8);
        assert_eq!(landing.then_head_bytes(), None);
        assert_eq!(landing.fill_from(b"abcde"), 2);
        assert!(landing.is_full() && !landing.is_complete());
        assert_eq!(landing.missing_bytes(), 3);
        let refused = Landing::new(BufferMut::zeroed(1)).announced(2);
        assert_eq!(refused.grow(|_, whole| Err(whole)).unwrap_err(), 2);
        let longer = |memory: BufferMut, whole_bytes| {
            let mut longer = BufferMut::zeroed(whole_bytes);
            longer[..memory.len()].copy_from_slice(&memory);
            Ok::<_, ()>(longer)
        };
        let mut landing = landing.grow(longer).unwrap();
        assert_eq!(landing.then_head_bytes(), Some(8));
        assert_eq!(landing.fill_from(b"cde"), 3);
        assert!(landing.is_complete());
        assert_eq!(&landing.into_shared()[..], b"abcde");
    }

    #[test]
    fn what_replaces_a_landing_that_grows_has_all_of_its_bytes() {
        let mut landing = Landing::replaceable(BufferMut::zeroed(2)).announced(5);
        assert!(landing.replace(Buffer::from(&b"12"[..])).is_err());
        let fixed = Landing::replaceable(BufferMut::zeroed(5)).fixed();
        assert!(!fixed.is_replaceable());
        assert_eq!(landing.replace(Buffer::from(&b"12345"[..])), Ok(()));
        assert!(landing.is_full() && landing.is_complete());
        assert_eq!(landing.replaced_beyond_bytes(), 3);
        assert!(landing.unfilled().is_empty());
        assert_eq!(landing.fill_from(b"6"), 0);
        let landing = landing.whole();
        assert!(landing.is_full());
        assert_eq!(&landing.into_shared()[..], b"12345");
    }

    #[test]
    #[should_panic(expected = "6 bytes landed where 5 were wanted")]
    fn a_landing_cannot_be_overrun() {
        Landing::new(BufferMut::zeroed(5)).advance(6);
    }
}
