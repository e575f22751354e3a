use std::hash::{BuildHasher, Hasher};

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashTable};
use slab::Slab;

use crate::{Tensor, Text};

/// The keys for which something waits, found by step and key, and listed by step.
///
/// All lists are threaded through the slabs, so that every insertion and removal takes constant time and
/// memory that was freed is used again.
#[derive(Debug)]
pub(super) struct Table {
    entries: Slab<Entry>,
    by_key: HashTable<usize>,
    steps: Slab<Step>,
    by_step: HashMap<i64, usize, RandomState>,
    waits: Slab<Wait>,
    hasher: RandomState,
}

/// A key with a tensor, with waiting requests, or with both.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: Text,
    pub(super) tensor: Option<Tensor>,
    hash: u64,
    step: usize,
    previous_in_step: usize,
    next_in_step: usize,
    first_wait: usize,
    last_wait: usize,
    waits: usize,
    /// Whether a request that wants several tensors at once has found this one.
    pub(super) is_found: bool,
}

#[derive(Debug)]
struct Step {
    id: i64,
    entries: usize,
    first_entry: usize,
    last_entry: usize,
}

/// One request that waits for one key.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) waiter: usize,
    pub(super) entry: usize,
    previous_at_entry: usize,
    next_at_entry: usize,
    /// The wait of the same request for its next key.
    pub(super) next_of_waiter: usize,
}

/// The end of a list.
pub(super) const NONE: usize = usize::MAX;

impl Table {
    pub(super) fn new() -> Self {
        Self {
            entries: Slab::new(),
            by_key: HashTable::new(),
            steps: Slab::new(),
            by_step: HashMap::default(),
            waits: Slab::new(),
            hasher: RandomState::default(),
        }
    }

    pub(super) fn hash_key(&self, key: &Text) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key.as_buffer());
        hasher.finish()
    }

    /// The hash of a key in a step, from that of the key, so that those of long keys are computed once.
    pub(super) fn hash(&self, step_id: i64, key_hash: u64) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_i64(step_id);
        hasher.write_u64(key_hash);
        hasher.finish()
    }

    pub(super) fn find(&self, hash: u64, step_id: i64, key: &Text) -> Option<usize> {
        let found = self.by_key.find(hash, |&slot| {
            let entry = &self.entries[slot];
            entry.hash == hash && entry.key == *key && self.steps[entry.step].id == step_id
        });
        found.copied()
    }

    /// The entry of a key if it has a tensor, which nobody waits for and nobody has found yet; it is found now.
    pub(super) fn find_tensor(&mut self, hash: u64, step_id: i64, key: &Text) -> Option<usize> {
        let slot = self.find(hash, step_id, key)?;
        let entry = &mut self.entries[slot];
        if entry.tensor.is_none() || entry.waits > 0 || entry.is_found {
            return None;
        }
        entry.is_found = true;
        Some(slot)
    }

    /// Adds an entry that [`Table::find`] did not find. It is not kept empty: the caller gives it a tensor or
    /// a wait, or removes it.
    pub(super) fn insert(&mut self, hash: u64, step_id: i64, key: Text) -> usize {
        let step = self.find_or_add_step(step_id);
        let previous = self.steps[step].last_entry;
        let slot = self.entries.insert(Entry {
            key,
            tensor: None,
            hash,
            step,
            previous_in_step: previous,
            next_in_step: NONE,
            first_wait: NONE,
            last_wait: NONE,
            waits: 0,
            is_found: false,
        });
        match self.entries.get_mut(previous) {
            Some(entry) => entry.next_in_step = slot,
            None => self.steps[step].first_entry = slot,
        }
        self.steps[step].last_entry = slot;
        self.steps[step].entries += 1;
        let entries = &self.entries;
        self.by_key
            .insert_unique(hash, slot, |&slot| entries[slot].hash);
        slot
    }

    /// Removes an entry, and its step with the last of its entries.
    pub(super) fn remove(&mut self, slot: usize) -> Entry {
        let entry = self.entries.remove(slot);
        debug_assert_eq!(entry.waits, 0, "a request still waits for {}", entry.key);
        match self.entries.get_mut(entry.previous_in_step) {
            Some(previous) => previous.next_in_step = entry.next_in_step,
            None => self.steps[entry.step].first_entry = entry.next_in_step,
        }
        match self.entries.get_mut(entry.next_in_step) {
            Some(next) => next.previous_in_step = entry.previous_in_step,
            None => self.steps[entry.step].last_entry = entry.previous_in_step,
        }
        if let Ok(found) = self.by_key.find_entry(entry.hash, |&other| other == slot) {
            found.remove();
        }
        self.steps[entry.step].entries -= 1;
        if self.steps[entry.step].entries == 0 {
            let step = self.steps.remove(entry.step);
            self.by_step.remove(&step.id);
        }
        entry
    }

    pub(super) fn entry(&self, slot: usize) -> &Entry {
        &self.entries[slot]
    }

    pub(super) fn entry_mut(&mut self, slot: usize) -> &mut Entry {
        &mut self.entries[slot]
    }

    pub(super) fn first_entry(&self, step_id: i64) -> Option<usize> {
        let step = *self.by_step.get(&step_id)?;
        Some(self.steps[step].first_entry)
    }

    pub(super) fn entries_of(&self, step_id: i64) -> usize {
        self.by_step
            .get(&step_id)
            .map_or(0, |&step| self.steps[step].entries)
    }

    pub(super) fn step_ids(&self) -> impl Iterator<Item = i64> {
        self.steps.iter().map(|(_, step)| step.id)
    }

    pub(super) fn steps(&self) -> usize {
        self.steps.len()
    }

    pub(super) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Appends a request to those that wait for a key.
    pub(super) fn insert_wait(&mut self, slot: usize, waiter: usize) -> usize {
        let entry = &mut self.entries[slot];
        let wait = self.waits.insert(Wait {
            waiter,
            entry: slot,
            previous_at_entry: entry.last_wait,
            next_at_entry: NONE,
            next_of_waiter: NONE,
        });
        match self.waits.get_mut(entry.last_wait) {
            Some(last) => last.next_at_entry = wait,
            None => entry.first_wait = wait,
        }
        entry.last_wait = wait;
        entry.waits += 1;
        wait
    }

    pub(super) fn remove_wait(&mut self, slot: usize) -> Wait {
        let wait = self.waits.remove(slot);
        let entry = &mut self.entries[wait.entry];
        match self.waits.get_mut(wait.previous_at_entry) {
            Some(previous) => previous.next_at_entry = wait.next_at_entry,
            None => entry.first_wait = wait.next_at_entry,
        }
        match self.waits.get_mut(wait.next_at_entry) {
            Some(next) => next.previous_at_entry = wait.previous_at_entry,
            None => entry.last_wait = wait.previous_at_entry,
        }
        entry.waits -= 1;
        wait
    }

    pub(super) fn wait_mut(&mut self, slot: usize) -> &mut Wait {
        &mut self.waits[slot]
    }

    /// The requests that wait for a key, first come first.
    pub(super) fn waiters_at(&self, slot: usize) -> impl Iterator<Item = usize> {
        let mut next = self.entries[slot].first_wait;
        std::iter::from_fn(move || {
            let wait = self.waits.get(next)?;
            next = wait.next_at_entry;
            Some(wait.waiter)
        })
    }

    pub(super) fn last_waiter_at(&self, slot: usize) -> Option<usize> {
        let wait = self.waits.get(self.entries[slot].last_wait)?;
        Some(wait.waiter)
    }

    fn find_or_add_step(&mut self, step_id: i64) -> usize {
        let steps = &mut self.steps;
        *self.by_step.entry(step_id).or_insert_with(|| {
            steps.insert(Step {
                id: step_id,
                entries: 0,
                first_entry: NONE,
                last_entry: NONE,
            })
        })
    }
}

impl Entry {
    pub(super) fn waits(&self) -> usize {
        self.waits
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tensor.is_none() && self.waits == 0
    }
}
