use std::hash::{BuildHasher, Hasher};

use foldhash::fast::RandomState;
use grpcxx_rpc::{Status, Text};

use crate::task::Task;

/// The keys that were found good lately, so that those of the next step need neither memory of
/// their own nor to be parsed again.
///
/// A cache of pairs: the hash of a key names its pair, in which the key that was used last stays.
/// The texts that the cache hands out are found again by their address, without a look at their
/// bytes.
#[derive(Debug)]
pub(super) struct KnownKeys {
    pairs: Vec<Pair>,
    /// Where texts lie that were handed out: for the hash of an address the number of a line.
    by_address: Vec<u32>,
    hasher: RandomState,
}

#[derive(Clone, Debug, Default)]
struct Pair {
    lines: [Line; 2],
    /// The line that was used last.
    recent: usize,
}

/// A key; an empty text is none.
#[derive(Clone, Debug, Default)]
struct Line {
    text: Text,
    hash: u64,
}

impl KnownKeys {
    /// Knows nothing; `hasher` makes the hashes that [`KnownKeys::check`] returns.
    pub(super) fn new(hasher: RandomState) -> Self {
        Self {
            pairs: vec![Pair::default(); PAIRS],
            by_address: vec![0; LINES],
            hasher,
        }
    }

    /// A key and its hash, as the text that requests for it have if it was found good: comparing
    /// the two is to compare their addresses, and the text that came is dropped now and not when it
    /// has left the caches.
    #[inline]
    pub(super) fn known(&self, key: Text) -> (Text, u64) {
        if let Some(hash) = self.hash_at(&key) {
            return (key, hash);
        }
        let hash = self.hash(key.as_buffer());
        let pair = &self.pairs[hash as usize % PAIRS];
        match pair.find(key.as_buffer()) {
            Some(line) => (pair.lines[line].text.clone(), hash),
            None => (key, hash),
        }
    }

    /// The hash of a text that was handed out.
    #[inline]
    fn hash_at(&self, key: &Text) -> Option<u64> {
        let bytes = &key.as_buffer()[..];
        let place = self.by_address[place_of(bytes)] as usize;
        let line = &self.pairs[place / 2].lines[place % 2];
        // All empty texts may have the same address.
        let is_it = !bytes.is_empty() && line.text.is_same(key);
        is_it.then_some(line.hash)
    }

    /// The text of a key that was found good.
    pub(super) fn find(&mut self, key: &[u8]) -> Option<Text> {
        let hash = self.hash(key);
        let pair = &mut self.pairs[hash as usize % PAIRS];
        pair.recent = pair.find(key)?;
        Some(pair.lines[pair.recent].text.clone())
    }

    /// The hash of a key, if its tensor can come from `task`.
    #[inline]
    pub(super) fn check(&mut self, key: &Text, task: &Task) -> Result<u64, Status> {
        match self.hash_at(key) {
            Some(hash) => Ok(hash),
            None => self.check_bytes(key, task),
        }
    }

    #[inline(never)]
    fn check_bytes(&mut self, key: &Text, task: &Task) -> Result<u64, Status> {
        let bytes = &key.as_buffer()[..];
        let hash = self.hash(bytes);
        let number = hash as usize % PAIRS;
        if self.pairs[number].find(bytes).is_none() {
            task.check_key(key)?;
            if bytes.len() <= LINE_BYTES_MAX {
                self.cache(number, hash, bytes);
            }
        }
        Ok(hash)
    }

    /// The hash of a key.
    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    /// Keeps a copy of a key, since memory of a message is not to be kept.
    fn cache(&mut self, number: usize, hash: u64, key: &[u8]) {
        let Ok(text) = std::str::from_utf8(key) else {
            return;
        };
        let pair = &mut self.pairs[number];
        pair.recent = 1 - pair.recent;
        let line = &mut pair.lines[pair.recent];
        *line = Line {
            text: Text::from(text),
            hash,
        };
        let place = place_of(line.text.as_buffer());
        self.by_address[place] = (2 * number + pair.recent) as u32;
    }
}

impl Pair {
    /// The line with this key.
    fn find(&self, key: &[u8]) -> Option<usize> {
        let is_line = |line: &Line| !key.is_empty() && line.text.as_buffer()[..] == *key;
        if is_line(&self.lines[self.recent]) {
            return Some(self.recent);
        }
        is_line(&self.lines[1 - self.recent]).then_some(1 - self.recent)
    }
}

/// The place for the address of a text.
fn place_of(text: &[u8]) -> usize {
    let spread = (text.as_ptr().addr() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (spread >> 32) as usize % LINES
}

/// Keys that are known.
const LINES: usize = 2 * PAIRS;
const PAIRS: usize = 2048;

/// Longest key that is kept.
const LINE_BYTES_MAX: usize = 512;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::cluster::TaskId;
    use crate::task::Device;

    #[test]
    fn bad_keys_stay_bad_and_good_ones_good_whatever_pushes_them_out() {
        let id = TaskId::new("ps", 0);
        let task = Task::new(id.clone(), &[Device::cpu(&id, 7, 0)]).unwrap();
        let key = |incarnation: u64, edge: usize| {
            Text::from(format!(
                "/job:ps/replica:0/task:0/device:CPU:0;{incarnation:016x};/job:w/replica:0/task:0/device:CPU:0;e{edge};0:0"
            ))
        };
        let mut keys = KnownKeys::new(RandomState::default());
        assert!(keys.check(&Text::default(), &task).is_err());
        assert_eq!(keys.find(b""), None);
        let edges = if cfg!(miri) { 4 } else { 2 * LINES };
        let mut found = 0;
        for _round in 0..2 {
            for edge in 0..edges {
                let good = key(7, edge);
                let hash = keys.hash(good.as_buffer());
                if let Some(text) = keys.find(good.as_buffer()) {
                    assert_eq!(text, good);
                    assert_eq!(keys.check(&text, &task), Ok(hash));
                    found += 1;
                }
                assert_eq!(keys.check(&good, &task), Ok(hash));
                let text = keys.find(good.as_buffer()).expect("it was cached just now");
                assert_eq!(keys.check(&text, &task), Ok(hash));
                let bad = key(8, edge);
                assert!(keys.check(&bad, &task).is_err());
                assert_eq!(keys.find(bad.as_buffer()), None);
            }
        }
        assert!((1..edges).contains(&found) || cfg!(miri), "{found}");
        let good = key(7, 0);
        assert_eq!(keys.check(&good, &task), Ok(keys.hash(good.as_buffer())));
        let text = keys.find(good.as_buffer()).expect("it was cached just now");
        for sent in [good, text.clone()] {
            let (known, hash) = keys.known(sent);
            assert!(known.is_same(&text));
            assert_eq!(hash, keys.hash(text.as_buffer()));
        }
        let (unknown, _) = keys.known(key(8, 0));
        assert_eq!(
            keys.find(unknown.as_buffer()),
            None,
            "nobody has checked it"
        );
        let long = key(7, 0).replace("e0", &"e".repeat(LINE_BYTES_MAX));
        assert!(keys.check(&Text::from(long.as_str()), &task).is_ok());
        assert_eq!(keys.find(long.as_bytes()), None);
    }
}
