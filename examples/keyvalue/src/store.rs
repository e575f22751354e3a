//! Keys in their order with their values, within a budget that several stores share.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

/// Bytes of a key, at most.
pub const KEY_BYTES_MAX: usize = 4096;
/// What an entry costs beside its key and value: its place in the map, and two allocations.
pub const ENTRY_BYTES: u64 = 128;
/// Entries of a page, at most.
const PAGE_ENTRIES: usize = 256;
/// A page is full with the entry that makes it as long as this.
const PAGE_BYTES: usize = 64 << 10;

/// Memory that may be taken, by the stores that share it.
#[derive(Debug)]
pub struct Budget {
    used: AtomicU64,
    max: u64,
}

/// A budget would be exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// What is taken.
    pub used: u64,
    /// What may be taken.
    pub max: u64,
}

/// Keys from a first one to the one to stop before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    start: Bound<Bytes>,
    end: Bound<Bytes>,
}

/// Entries that lie one behind the other.
#[derive(Debug, Default)]
pub struct Page {
    /// Keys and values, in the order of the keys.
    pub entries: Vec<(Bytes, Bytes)>,
    /// What is left of the range, if anything may be.
    pub rest: Option<KeyRange>,
}

/// What one shard keeps.
#[derive(Debug)]
pub struct Store {
    entries: BTreeMap<Bytes, Bytes>,
    budget: Arc<Budget>,
}

impl Budget {
    /// So many bytes.
    pub fn new(max: u64) -> Self {
        Self {
            used: AtomicU64::new(0),
            max,
        }
    }

    /// What is taken.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: u64) -> Result<(), Full> {
        let taken = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.max);
        let update = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken);
        update.map(drop).map_err(|used| Full {
            used,
            max: self.max,
        })
    }

    fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl KeyRange {
    /// From `start` to before `end`. Where one is empty, there is no bound. Nothing if they are the
    /// wrong way round.
    pub fn new(start: Bytes, end: Bytes) -> Option<Self> {
        if !end.is_empty() && start > end {
            return None;
        }
        let end = match end.is_empty() {
            true => Bound::Unbounded,
            false => Bound::Excluded(end),
        };
        Some(Self {
            start: Bound::Included(start),
            end,
        })
    }
}

/// The key before which all keys with this prefix end; empty if nothing comes behind them.
pub fn end_of_prefix(prefix: &[u8]) -> Vec<u8> {
    let kept = prefix.iter().rposition(|byte| *byte != u8::MAX);
    let mut end = prefix[..kept.map_or(0, |last| last + 1)].to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

impl Store {
    /// An empty store.
    pub fn new(budget: Arc<Budget>) -> Self {
        Self {
            entries: BTreeMap::new(),
            budget,
        }
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Option<Bytes> {
        self.entries.get(key).cloned()
    }

    /// Gives a key its value, and tells whether it had one before.
    ///
    /// # Errors
    /// The budget is used up; the key has the value that it had.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Full> {
        // A message may share what it landed in with others. Copies take what is counted here.
        if let Some(old) = self.entries.get_mut(key) {
            let (before, after) = (old.len() as u64, value.len() as u64);
            self.budget.take(after.saturating_sub(before))?;
            *old = Bytes::copy_from_slice(value);
            self.budget.give_back(before.saturating_sub(after));
            return Ok(true);
        }
        self.budget.take(size_of_entry(key, value))?;
        let (key, value) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
        self.entries.insert(key, value);
        Ok(false)
    }

    /// Removes a key, and tells whether it was there.
    pub fn delete(&mut self, key: &[u8]) -> bool {
        let Some((key, value)) = self.entries.remove_entry(key) else {
            return false;
        };
        self.budget.give_back(size_of_entry(&key, &value));
        true
    }

    /// The first entries of a range: some hundred, or some ten KiB of them.
    pub fn page(&self, range: &KeyRange) -> Page {
        let bounds = (range.start.as_ref(), range.end.as_ref());
        let mut page = Page::default();
        let mut bytes = 0;
        for (key, value) in self.entries.range::<Bytes, _>(bounds) {
            page.entries.push((key.clone(), value.clone()));
            bytes += key.len() + value.len();
            if bytes >= PAGE_BYTES || page.entries.len() == PAGE_ENTRIES {
                page.rest = Some(KeyRange {
                    start: Bound::Excluded(key.clone()),
                    end: range.end.clone(),
                });
                break;
            }
        }
        page
    }
}

fn size_of_entry(key: &[u8], value: &[u8]) -> u64 {
    ENTRY_BYTES + key.len() as u64 + value.len() as u64
}
