use std::hash::{BuildHasher, Hasher};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::OccupiedEntry;
use slab::Slab;

use super::entries::{Entries, Entry};
use super::taken::TakenTensor;
use crate::{Tensor, Text};

/// The keys for which something waits, found by step and key, and listed by step.
///
/// All lists are threaded through the entries and the slab, so that every insertion and removal takes constant time
/// and memory that was freed is used again.
///
/// Invariant: where a step has several entries, all of them are in the index of entries. An only one need not be, so that
/// a step with one key takes one look.
#[derive(Debug)]
pub(super) struct Table {
    steps: HashTable<Step>,
    entries: Entries,
    waits: Slab<Wait>,
}

#[derive(Debug)]
struct Step {
    id: i64,
    entries: usize,
    first_entry: usize,
    last_entry: usize,
}

/// Where the entry of a key is, or would be, until an entry is added or removed.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) step_id: i64,
    step_hash: u64,
    step: Option<usize>,
    key_hash: u64,
    pub(super) entry: Option<usize>,
    /// How many its step has.
    pub(super) entries_of_step: usize,
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
            steps: HashTable::new(),
            entries: Entries::new(),
            waits: Slab::new(),
        }
    }

    pub(super) fn key_hasher(&self) -> RandomState {
        self.entries.hasher().clone()
    }

    pub(super) fn hash_key(&self, key: &Text) -> u64 {
        let mut hasher = self.entries.hasher().build_hasher();
        hasher.write(key.as_buffer());
        hasher.finish()
    }

    #[inline]
    pub(super) fn find(&self, step_id: i64, key_hash: u64, key: &Text) -> Place {
        let step_hash = self.entries.step_hash(step_id);
        let index = (self.steps).find_bucket_index(step_hash, |step| step.id == step_id);
        let step = index.and_then(|index| self.steps.get_bucket(index));
        Place {
            step_id,
            step_hash,
            step: index,
            key_hash,
            entry: step.and_then(|step| step.find(key_hash, key, &self.entries)),
            entries_of_step: step.map_or(0, |step| step.entries),
        }
    }

    /// Finds the entries of several keys, with their hashes, if each has a tensor, which nobody waits for and nobody has
    /// found yet. Returns whether it did.
    pub(super) fn find_tensors<'a>(
        &mut self,
        step_id: i64,
        keys: impl Iterator<Item = (&'a Text, u64)>,
        found: &mut Vec<usize>,
    ) -> bool {
        found.clear();
        let step_hash = self.entries.step_hash(step_id);
        let Some(step) = self.steps.find(step_hash, |step| step.id == step_id) else {
            return false;
        };
        for (key, key_hash) in keys {
            let slot = step.find(key_hash, key, &self.entries);
            let slot = slot.filter(|&slot| self.entries.get(slot).is_there());
            let Some(slot) = slot else {
                for &slot in &*found {
                    self.entries.get_mut(slot).is_found = false;
                }
                return false;
            };
            self.entries.get_mut(slot).is_found = true;
            found.push(slot);
        }
        true
    }

    /// Takes the tensor of a key, and removes its entry, if nobody waits for it or has found it, and if its data is not
    /// longer than this.
    #[inline]
    pub(super) fn take_tensor(
        &mut self,
        step_id: i64,
        key_hash: u64,
        key: &Text,
        data_bytes_max: usize,
    ) -> Option<TakenTensor<'_>> {
        let step_hash = self.entries.step_hash(step_id);
        let step = self.steps.find_entry(step_hash, |step| step.id == step_id);
        let step = step.ok()?;
        let slot = step.get().find(key_hash, key, &self.entries)?;
        let entry = self.entries.get(slot);
        if !entry.is_free() || entry.tensor.as_ref()?.data.len() > data_bytes_max {
            return None;
        }
        let (previous, next) = self.entries.remove(slot);
        Step::leave(step, previous, next);
        let entry = self.entries.get_mut(slot);
        TakenTensor::new(&mut entry.key, &mut entry.tensor)
    }

    /// Adds an entry where there is none. It is not kept empty: the caller gives it a tensor or a wait, or removes it.
    pub(super) fn insert(&mut self, place: &Place, key: Text) -> usize {
        let step = place.step.and_then(|step| self.steps.get_bucket_mut(step));
        let Some(step) = step else {
            let slot = self
                .entries
                .insert(place.step_id, place.key_hash, key, NONE);
            let entries = &self.entries;
            let step = Step {
                id: place.step_id,
                entries: 1,
                first_entry: slot,
                last_entry: slot,
            };
            self.steps
                .insert_unique(place.step_hash, step, |step| entries.step_hash(step.id));
            return slot;
        };
        let last = step.last_entry;
        let slot = self
            .entries
            .insert(place.step_id, place.key_hash, key, last);
        step.last_entry = slot;
        step.entries += 1;
        // The one that may have been alone so far.
        self.entries.index(last);
        self.entries.index(slot);
        slot
    }

    /// Removes an entry, and its step with the last of its entries. Returns its key.
    pub(super) fn remove(&mut self, slot: usize) -> Text {
        let entry = self.entries.get_mut(slot);
        debug_assert!(entry.is_empty(), "something still waits for {}", entry.key);
        let key = std::mem::take(&mut entry.key);
        let step_id = entry.step_id;
        let step_hash = self.entries.step_hash(step_id);
        let (previous, next) = self.entries.remove(slot);
        match self.steps.find_entry(step_hash, |step| step.id == step_id) {
            Ok(step) => Step::leave(step, previous, next),
            Err(_) => unreachable!("a step is there as long as its entries"),
        }
        key
    }

    /// Takes the tensor of an entry and removes the entry.
    #[inline]
    pub(super) fn remove_tensor(&mut self, slot: usize) -> Option<Tensor> {
        let tensor = self.entries.get_mut(slot).tensor.take();
        self.remove(slot);
        tensor
    }

    pub(super) fn entry(&self, slot: usize) -> &Entry {
        self.entries.get(slot)
    }

    pub(super) fn entry_mut(&mut self, slot: usize) -> &mut Entry {
        self.entries.get_mut(slot)
    }

    pub(super) fn first_entry(&self, step_id: i64) -> Option<usize> {
        Some(self.step(step_id)?.first_entry)
    }

    pub(super) fn step_ids(&self) -> impl Iterator<Item = i64> {
        self.steps.iter().map(|step| step.id)
    }

    pub(super) fn steps(&self) -> usize {
        self.steps.len()
    }

    pub(super) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Appends a request to those that wait for a key.
    pub(super) fn insert_wait(&mut self, slot: usize, waiter: usize) -> usize {
        let entry = self.entries.get_mut(slot);
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
        let entry = self.entries.get_mut(wait.entry);
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
        let mut next = self.entries.get(slot).first_wait;
        std::iter::from_fn(move || {
            let wait = self.waits.get(next)?;
            next = wait.next_at_entry;
            Some(wait.waiter)
        })
    }

    pub(super) fn last_waiter_at(&self, slot: usize) -> Option<usize> {
        let wait = self.waits.get(self.entries.get(slot).last_wait)?;
        Some(wait.waiter)
    }

    fn step(&self, step_id: i64) -> Option<&Step> {
        let hash = self.entries.step_hash(step_id);
        self.steps.find(hash, |step| step.id == step_id)
    }
}

impl Step {
    /// Finds a key of this step.
    #[inline]
    fn find(&self, key_hash: u64, key: &Text, entries: &Entries) -> Option<usize> {
        if self.entries > 1 {
            return entries.find(self.id, key_hash, key);
        }
        let only = self.first_entry;
        entries.get(only).is_of(key_hash, key).then_some(only)
    }

    /// Takes an entry between two others out of its step, which ends with its last.
    #[inline]
    fn leave(mut found: OccupiedEntry<'_, Self>, previous: usize, next: usize) {
        let step = found.get_mut();
        step.entries -= 1;
        if step.entries == 0 {
            found.remove();
            return;
        }
        if previous == NONE {
            step.first_entry = next;
        }
        if next == NONE {
            step.last_entry = previous;
        }
    }
}
