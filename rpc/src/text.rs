//! Texts that share the memory they arrived in.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use grpcxx_memory::Buffer;

/// Shared UTF-8 text over a [`Buffer`]: a name or a key, cloned and kept without a copy. Nobody can
/// change its memory; of what another process lends, a text takes a copy.
#[derive(Clone, Default)]
pub struct Text(Buffer);

/// Bytes that are not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not UTF-8 at byte {at_byte}")]
pub struct NotUtf8 {
    /// Offset of the first byte that does not belong to a character.
    pub at_byte: usize,
}

impl Text {
    /// The text as a string slice.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("checked when the text was made")
    }

    /// The length in bytes. No byte is looked at, here and below, as a `str` would need it.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes of the text.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The memory behind the text.
    pub fn as_buffer(&self) -> &Buffer {
        &self.0
    }

    /// Whether both are the same memory, so that they are equal without a look at their bytes. All
    /// empty texts may be.
    #[inline(always)]
    pub fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq(&self.0[..], &other.0[..])
    }
}

impl TryFrom<Buffer> for Text {
    type Error = NotUtf8;

    fn try_from(bytes: Buffer) -> Result<Self, NotUtf8> {
        // Bytes that somebody may change later prove nothing.
        let bytes = bytes.into_private();
        match std::str::from_utf8(&bytes) {
            Ok(_) => Ok(Self(bytes)),
            Err(error) => Err(NotUtf8 {
                at_byte: error.valid_up_to(),
            }),
        }
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(Buffer::from(text.as_bytes().to_vec()))
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(Buffer::from(text.into_bytes()))
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl PartialEq for Text {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        // Clones are met more often than copies.
        self.is_same(other) || self.0[..] == other.0[..]
    }
}

impl Eq for Text {}

impl PartialOrd for Text {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Text {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0[..].cmp(&other.0[..])
    }
}

impl Hash for Text {
    /// As that of the `str`, without another look at whether it is one.
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.0);
        state.write_u8(0xff);
    }
}

impl Borrow<str> for Text {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        &self.0[..] == other.as_bytes()
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self == *other
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::*;
    use crate::borrowed::borrowed;

    #[test]
    fn a_text_is_made_of_memory_that_nobody_else_writes() {
        let text = Text::try_from(borrowed(b"key")).unwrap();
        assert!(!text.as_buffer().is_borrowed() && text.as_str() == "key");
        assert_eq!(
            Text::try_from(borrowed(b"k\xff")).unwrap_err(),
            NotUtf8 { at_byte: 1 }
        );
    }

    #[test]
    fn a_text_has_the_hash_of_its_str() {
        let fold = foldhash::fast::RandomState::default();
        let sip = std::hash::RandomState::new();
        for text in ["", "a", "edge_1_logits", "größer", &"long ".repeat(100)] {
            assert_eq!(fold.hash_one(Text::from(text)), fold.hash_one(text));
            assert_eq!(sip.hash_one(Text::from(text)), sip.hash_one(text));
        }
    }
}
