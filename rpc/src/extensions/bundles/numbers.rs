//! Numbers that stand for keys: those a client gives, and those a server knows.

use foldhash::fast::RandomState;
use grpcxx_memory::Buffer;
use hashbrown::HashTable;
use std::hash::{BuildHasher, Hasher};

use crate::Text;
use crate::connection::{Landings, PeerViolation};
use crate::wire::{
    KeyReference, Malformed, NUMBERED_BYTES_MAX, NUMBERED_KEY_BYTES_MAX, NUMBERED_KEYS_MAX, Problem,
};

/// The numbers that a client has given to keys.
///
/// Numbers are given in order; once all are given, the oldest stands for the next key. So a table
/// is as long as it has to be, and programs whose keys change for ever are served too.
#[derive(Debug)]
pub(crate) struct KeyNumbers {
    keys: Vec<Text>,
    numbers: HashTable<Numbered>,
    hasher: RandomState,
    /// The number given last.
    newest: usize,
    /// The number found last: often the next key is the same, or the one numbered after it.
    recent: usize,
    keys_max: usize,
    /// Bytes of all keys.
    bytes: usize,
    bytes_max: usize,
}

#[derive(Clone, Copy, Debug)]
struct Numbered {
    hash: u64,
    number: u32,
}

/// The keys that a server knows by the numbers that its client gave them.
#[derive(Debug, Default)]
pub(crate) struct NumberedKeys {
    keys: Vec<NumberedKey>,
    /// The last key that came without a number.
    whole: Text,
    /// Bytes of all keys with numbers.
    bytes: usize,
}

#[derive(Clone, Debug, Default)]
struct NumberedKey {
    text: Text,
    /// Whether the rest of the server may know a text for it when it comes again.
    is_new: bool,
}

impl Default for KeyNumbers {
    fn default() -> Self {
        Self::with_limits(NUMBERED_KEYS_MAX, NUMBERED_BYTES_MAX)
    }
}

impl KeyNumbers {
    fn with_limits(keys_max: usize, bytes_max: usize) -> Self {
        Self {
            keys: Vec::new(),
            numbers: HashTable::new(),
            hasher: RandomState::default(),
            newest: 0,
            recent: 0,
            keys_max,
            bytes: 0,
            bytes_max,
        }
    }

    /// The number of a key that is the one found last, or the next, and lies where that does.
    #[inline(always)]
    pub(crate) fn find_recent(&mut self, key: &Text) -> Option<u32> {
        for number in [self.recent, self.recent + 1] {
            if let Some(known) = self.keys.get(number)
                && known.is_same(key)
            {
                self.recent = number;
                return Some(number as u32);
            }
        }
        None
    }

    /// How a request names a key. What it says of a new number must reach the peer, before what is
    /// asked for next.
    pub(crate) fn refer<'a>(&mut self, key: &'a Text) -> KeyReference<'a> {
        let bytes = &key.as_buffer()[..];
        if bytes.len() > NUMBERED_KEY_BYTES_MAX {
            return KeyReference::Whole { key: bytes };
        }
        let hash = self.hash(bytes);
        let is_key = |known: &Numbered| self.keys[known.number as usize] == *key;
        if let Some(&Numbered { number, .. }) = self.numbers.find(hash, is_key) {
            self.recent = number as usize;
            return KeyReference::Known { number };
        }
        match self.give(key.clone(), hash) {
            Some(number) => KeyReference::New { number, key: bytes },
            None => KeyReference::Whole { key: bytes },
        }
    }

    /// Gives a key a number, unless all keys would then be too long.
    fn give(&mut self, key: Text, hash: u64) -> Option<u32> {
        let key_bytes = key.as_buffer().len();
        if self.keys.len() < self.keys_max && self.bytes + key_bytes <= self.bytes_max {
            self.newest = self.keys.len();
            self.bytes += key_bytes;
            self.keys.push(key);
        } else {
            self.replace_oldest(key)?;
        }
        self.recent = self.newest;
        let number = self.newest as u32;
        let numbered = Numbered { hash, number };
        self.numbers
            .insert_unique(hash, numbered, |numbered| numbered.hash);
        Some(number)
    }

    /// Lets the oldest number stand for another key.
    fn replace_oldest(&mut self, key: Text) -> Option<()> {
        let oldest = (self.newest + 1) % self.keys.len().max(1);
        let old = self.keys.get_mut(oldest)?;
        let bytes = self.bytes - old.as_buffer().len() + key.as_buffer().len();
        if bytes > self.bytes_max {
            return None;
        }
        let old = std::mem::replace(old, key);
        (self.newest, self.bytes) = (oldest, bytes);
        let old_hash = self.hash(old.as_buffer());
        let is_old = |known: &Numbered| known.number as usize == oldest;
        if let Ok(entry) = self.numbers.find_entry(old_hash, is_old) {
            entry.remove();
        }
        Some(())
    }

    fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        hasher.finish()
    }
}

impl NumberedKeys {
    /// Bytes of all keys with numbers.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The key that a request names.
    ///
    /// # Errors
    /// The number stands for no key, or cannot stand for one, or the bytes are no key.
    #[inline]
    pub(crate) fn resolve(
        &mut self,
        reference: KeyReference<'_>,
        landings: &mut dyn Landings,
    ) -> Result<&Text, PeerViolation> {
        match reference {
            KeyReference::Known { number } => self.find(number as usize, landings),
            KeyReference::New { number, key } => self.cache(number as usize, key, landings),
            KeyReference::Whole { key } => self.note(key, landings),
        }
    }

    #[inline]
    fn find(&mut self, number: usize, landings: &mut dyn Landings) -> Result<&Text, PeerViolation> {
        let known = self.keys.len();
        let Some(known_key) = self.keys.get_mut(number) else {
            return Err(PeerViolation::KeyNumber {
                found: number as u64,
                allowed: known as u64,
            });
        };
        if known_key.is_new {
            known_key.look_again(landings);
        }
        Ok(&known_key.text)
    }

    #[inline(never)]
    fn note(&mut self, key: &[u8], landings: &mut dyn Landings) -> Result<&Text, PeerViolation> {
        self.whole = match landings.known_key(key) {
            Some(text) => text,
            None => text_of(key)?,
        };
        Ok(&self.whole)
    }

    #[inline(never)]
    fn cache(
        &mut self,
        number: usize,
        key: &[u8],
        landings: &mut dyn Landings,
    ) -> Result<&Text, PeerViolation> {
        let known = self.keys.len();
        if number > known || number >= NUMBERED_KEYS_MAX {
            return Err(PeerViolation::KeyNumber {
                found: number as u64,
                allowed: NUMBERED_KEYS_MAX.min(known + 1) as u64,
            });
        }
        if key.len() > NUMBERED_KEY_BYTES_MAX {
            return Err(PeerViolation::Length {
                place: "a key with a number",
                found: key.len() as i128,
                allowed_max: NUMBERED_KEY_BYTES_MAX as u64,
            });
        }
        let old_bytes = self.keys.get(number).map_or(0, NumberedKey::bytes);
        let bytes = self.bytes - old_bytes + key.len();
        let allowed_max = NUMBERED_BYTES_MAX as u64;
        PeerViolation::check_length("all keys with numbers", bytes as u64, allowed_max)?;
        let (text, is_new) = match landings.known_key(key) {
            Some(text) => (text, false),
            None => (text_of(key)?, true),
        };
        self.bytes = bytes;
        let key = NumberedKey { text, is_new };
        if number == known {
            self.keys.push(key);
        } else {
            self.keys[number] = key;
        }
        Ok(&self.keys[number].text)
    }
}

impl NumberedKey {
    fn bytes(&self) -> usize {
        self.text.as_buffer().len()
    }

    #[inline(never)]
    fn look_again(&mut self, landings: &mut dyn Landings) {
        self.is_new = false;
        if let Some(known) = landings.known_key(self.text.as_buffer()) {
            self.text = known;
        }
    }
}

fn text_of(key: &[u8]) -> Result<Text, Malformed> {
    Text::try_from(Buffer::from(key.to_vec())).map_err(|error| Malformed {
        place: "a key",
        field: "its text",
        at_byte: 0,
        problem: Problem::NotUtf8 {
            at_byte: error.at_byte,
        },
    })
}

#[cfg(test)]
mod tests {
    use grpcxx_memory::BufferMut;
    use proptest::prelude::*;

    use super::*;
    use crate::{Code, ImmediateHit, Status, TensorMeta};

    /// Knows the keys that begin with `known`.
    struct Known;

    impl Landings for Known {
        fn tensor(
            &mut self,
            _: u64,
            _: usize,
            _: &TensorMeta,
            _: usize,
        ) -> Result<BufferMut, Status> {
            Err(Status::new(Code::Internal, "no tensors here"))
        }

        fn message(&mut self, _: usize, _: usize) -> Result<BufferMut, Status> {
            Err(Status::new(Code::Internal, "no messages here"))
        }

        fn grow(&mut self, _: BufferMut, _: usize) -> Result<BufferMut, Status> {
            Err(Status::new(Code::Internal, "nothing here"))
        }

        fn block(&mut self, _: u64, _: usize) -> Option<BufferMut> {
            None
        }

        fn known_key(&mut self, bytes: &[u8]) -> Option<Text> {
            let text = std::str::from_utf8(bytes).ok()?;
            text.starts_with("known").then(|| Text::from(text))
        }

        fn immediate_hit(&mut self, _: i64, _: &Text, _: usize) -> Option<ImmediateHit<'_>> {
            None
        }
    }

    proptest! {
        #[test]
        fn both_ends_agree(
            keys in prop::collection::vec(0_u8..24, 1..300),
            keys_max in 1_usize..30,
            copies in any::<bool>(),
        ) {
            let mut numbers = KeyNumbers::with_limits(keys_max, NUMBERED_BYTES_MAX);
            let mut server = NumberedKeys::default();
            let texts: Vec<Text> = (0..24).map(|key| match key {
                0 => Text::from("l".repeat(NUMBERED_KEY_BYTES_MAX + 1)),
                key if key % 3 == 0 => Text::from(format!("known {key}")),
                key => Text::from(format!("key {key}")),
            }).collect();
            for key in keys {
                let text = &texts[usize::from(key)];
                let copy = Text::from(text.as_str());
                let asked = if copies { &copy } else { text };
                let recent = numbers.find_recent(asked);
                let reference = numbers.refer(asked);
                if let Some(number) = recent {
                    prop_assert_eq!(reference, KeyReference::Known { number });
                }
                prop_assert!(server.keys.len() <= keys_max);
                let found = server.resolve(reference, &mut Known);
                prop_assert_eq!(found, Ok(text));
                let again = numbers.refer(text);
                let is_known = matches!(again, KeyReference::Known { .. });
                prop_assert!(is_known || key == 0);
                prop_assert!(numbers.numbers.len() == numbers.keys.len());
            }
        }
    }

    #[test]
    fn numbers_out_of_range_are_violations() {
        let mut server = NumberedKeys::default();
        let mut resolve = |reference| server.resolve(reference, &mut Known).map(|_| ());
        let unknown = resolve(KeyReference::Known { number: 0 }).unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "a request names key number 0, allowed are those below 0"
        );
        let new = |number, key| KeyReference::New { number, key };
        assert!(resolve(new(1, b"a")).is_err());
        assert!(resolve(new(0, b"\xff")).is_err());
        assert!(resolve(new(0, &[b'a'; NUMBERED_KEY_BYTES_MAX + 1])).is_err());
        resolve(new(0, b"a")).unwrap();
        resolve(new(0, b"b")).unwrap();
        assert!(resolve(KeyReference::Whole { key: b"\xff" }).is_err());

        let mut full = NumberedKeys {
            keys: vec![NumberedKey::default(); NUMBERED_KEYS_MAX],
            ..NumberedKeys::default()
        };
        let last = NUMBERED_KEYS_MAX as u32 - 1;
        full.resolve(new(last, b"a"), &mut Known).unwrap();
        assert!(full.resolve(new(last + 1, b"a"), &mut Known).is_err());
    }

    #[test]
    fn the_keys_with_numbers_are_bounded_in_bytes_at_both_ends() {
        let key = |index: usize| Text::from(format!("{index:0>500}"));
        let count = 3 * NUMBERED_BYTES_MAX / 500;
        let mut numbers = KeyNumbers::default();
        let mut server = NumberedKeys::default();
        for index in 0..count {
            let key = key(index);
            let reference = numbers.refer(&key);
            assert!(matches!(reference, KeyReference::New { .. }), "{index}");
            assert_eq!(server.resolve(reference, &mut Known), Ok(&key));
            assert!(numbers.bytes <= NUMBERED_BYTES_MAX && server.bytes == numbers.bytes);
        }
        // Whoever does not keep to it has broken the protocol.
        let mut server = NumberedKeys::default();
        let refused = (0..count).find_map(|index| {
            let key = key(index);
            let number = index as u32;
            let reference = KeyReference::New {
                number,
                key: key.as_buffer(),
            };
            server.resolve(reference, &mut Known).err()
        });
        assert!(
            matches!(refused, Some(PeerViolation::Length { .. })),
            "{refused:?}"
        );
        assert!(server.bytes <= NUMBERED_BYTES_MAX);
    }

    #[test]
    fn a_key_that_no_short_one_makes_room_for_has_no_number() {
        let mut numbers = KeyNumbers::with_limits(10, 20);
        for key in ["a", "b", "eighteen letters.."] {
            assert!(matches!(
                numbers.refer(&Text::from(key)),
                KeyReference::New { .. }
            ));
        }
        let long = Text::from("nineteen letters...");
        assert!(matches!(numbers.refer(&long), KeyReference::Whole { .. }));
        let other = Text::from("c");
        let reference = numbers.refer(&other);
        assert!(
            matches!(reference, KeyReference::New { number: 0, .. }),
            "{reference:?}"
        );
    }
}
