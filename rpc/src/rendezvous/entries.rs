//! The keys of all steps under which something waits.

use std::hash::{BuildHasher, Hasher};

use foldhash::fast::RandomState;
use grpcxx_memory::prefetch;
use hashbrown::HashTable;

use crate::{Tensor, Text};

/// The keys of all steps, with what each has, and an index of those that are not alone in their
/// step.
///
/// They stay where they are, used or not: moving them would cost as much as all the rest.
#[derive(Debug)]
pub(super) struct Entries {
    slots: Vec<Entry>,
    /// The first of the slots that are not in use, of which each names the next as the next of its
    /// step.
    free: u32,
    in_use: u32,
    /// The one that was held last.
    last_held: u32,
    by_key: HashTable<u32>,
    hasher: RandomState,
}

/// A key with a tensor, with waiting requests, or with both.
///
/// Where many wait they are not in the caches of the CPU. So what a look for one needs lies in one
/// cache line, the data of its tensor and its first dimensions in the next, and the rest behind
/// them.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Entry {
    pub(super) step_id: i64,
    pub(super) key: Text,
    /// The lower half of the key's hash.
    key_hash: u32,
    next_in_step: u32,
    pub(super) waits: u32,
    /// Whether a request that wants several tensors at once has found this one.
    pub(super) is_found: bool,
    /// Whether the index has it.
    is_indexed: bool,
    /// Whether it has left its step and keeps its place.
    is_held: bool,
    pub(super) tensor: Option<Tensor>,
    previous_in_step: u32,
    pub(super) first_wait: u32,
    pub(super) last_wait: u32,
    /// Of the first entry of a step: the last one, and how many there are.
    last_in_step: u32,
    pub(super) entries_of_step: u32,
}

/// No entry, and no wait: the end of a list.
pub(super) const NONE: u32 = u32::MAX;

const _: () = assert!(
    size_of::<Entry>() == 3 * 64 && std::mem::offset_of!(Entry, tensor) == 64,
    "an entry is three cache lines, of which the first has what a look needs"
);

impl Entries {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: NONE,
            in_use: 0,
            last_held: 0,
            by_key: HashTable::new(),
            hasher: RandomState::default(),
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.in_use
    }

    /// Whether there is no place for another, with those that are held.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.free == NONE && self.slots.len() >= ENTRIES_MAX as usize
    }

    /// Tensors in the first so many slots that have not left their steps.
    pub(super) fn parked(&self, slots: usize) -> impl Iterator<Item = (i64, &Text, &Tensor)> {
        let entries = self.slots.iter().take(slots);
        let parked = entries.filter(|entry| !entry.is_held);
        parked.filter_map(|entry| Some((entry.step_id, &entry.key, entry.tensor.as_ref()?)))
    }

    pub(super) fn hasher(&self) -> &RandomState {
        &self.hasher
    }

    #[inline]
    pub(super) fn get(&self, slot: u32) -> &Entry {
        &self.slots[slot as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: u32) -> &mut Entry {
        &mut self.slots[slot as usize]
    }

    /// An entry that is held.
    pub(super) fn held_mut(&mut self, slot: u32) -> Option<&mut Entry> {
        (self.slots.get_mut(slot as usize)).filter(|entry| entry.is_held)
    }

    /// Finds a key of the step with this first entry.
    #[inline]
    pub(super) fn find(&self, first: u32, key_hash: u64, key: &Text) -> Option<u32> {
        let entry = self.get(first);
        if entry.next_in_step == NONE {
            return entry.is_of(key_hash, key).then_some(first);
        }
        self.find_indexed(entry.step_id, key_hash, key)
    }

    fn find_indexed(&self, step_id: i64, key_hash: u64, key: &Text) -> Option<u32> {
        let is_key = |&slot: &u32| {
            let entry = self.get(slot);
            entry.step_id == step_id && entry.is_of(key_hash, key)
        };
        let hash = near(step_id, (key_hash as u32).into(), &self.hasher);
        self.by_key.find(hash, is_key).copied()
    }

    /// Adds the first entry of a step.
    #[inline]
    pub(super) fn insert_first(&mut self, step_id: i64, key_hash: u64, key: Text) -> u32 {
        let slot = match self.free {
            NONE => self.grow(),
            slot => slot,
        };
        self.in_use += 1;
        let entry = &mut self.slots[slot as usize];
        self.free = std::mem::replace(&mut entry.next_in_step, NONE);
        entry.step_id = step_id;
        entry.key_hash = key_hash as u32;
        entry.key = key;
        entry.last_in_step = slot;
        entry.entries_of_step = 1;
        slot
    }

    /// Adds an entry behind the last one of the step with this first entry.
    pub(super) fn insert_last(&mut self, first: u32, key_hash: u64, key: Text) -> u32 {
        let slot = self.insert_first(self.get(first).step_id, key_hash, key);
        let first = self.get_mut(first);
        first.entries_of_step += 1;
        let last = std::mem::replace(&mut first.last_in_step, slot);
        self.get_mut(last).next_in_step = slot;
        self.get_mut(slot).previous_in_step = last;
        // The one that may have been alone so far.
        self.index(last);
        self.index(slot);
        slot
    }

    /// Adds a slot, which is not in use and has none after it.
    #[cold]
    fn grow(&mut self) -> u32 {
        let slot = self.slots.len() as u32;
        assert!(
            slot < ENTRIES_MAX,
            "who adds an entry asks before whether it may"
        );
        self.slots.push(Entry {
            step_id: 0,
            key: Text::default(),
            key_hash: 0,
            next_in_step: NONE,
            waits: 0,
            is_found: false,
            is_indexed: false,
            is_held: false,
            tensor: None,
            previous_in_step: NONE,
            first_wait: NONE,
            last_wait: NONE,
            last_in_step: NONE,
            entries_of_step: 0,
        });
        slot
    }

    /// Lets an entry be found by its key.
    fn index(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        if std::mem::replace(&mut entry.is_indexed, true) {
            return;
        }
        let hash_of = |entry: &Entry| near(entry.step_id, entry.key_hash.into(), &self.hasher);
        let (hash, slots) = (hash_of(entry), &self.slots);
        (self.by_key).insert_unique(hash, slot, |&slot| hash_of(&slots[slot as usize]));
    }

    #[inline(never)]
    fn unindex(&mut self, slot: u32) {
        let entry = self.get_mut(slot);
        entry.is_indexed = false;
        let (step_id, key_hash) = (entry.step_id, entry.key_hash);
        let hash = near(step_id, key_hash.into(), &self.hasher);
        if let Ok(found) = self.by_key.find_entry(hash, |&other| other == slot) {
            found.remove();
        }
    }

    /// Takes an entry out of its step, whose first entry it was or this is, and holds it. Returns
    /// the first one from now on, unless it was the only one.
    #[inline(always)]
    pub(super) fn detach(&mut self, slot: u32, first: u32) -> Option<u32> {
        self.in_use -= 1;
        let entry = self.get_mut(slot);
        entry.is_found = false;
        entry.is_held = true;
        let is_only = slot == first && entry.next_in_step == NONE;
        if entry.is_indexed {
            self.unindex(slot);
        }
        match is_only {
            true => None,
            false => Some(self.close_gap(slot, first)),
        }
    }

    /// Brings near what will be held soon if entries go on to be held as they were: whoever asks
    /// for many tensors mostly does so in the order in which they came, and so they lie one behind
    /// the other, or one before the other.
    #[inline(always)]
    pub(super) fn expect_next(&mut self, held: u32) {
        let stride = held.wrapping_sub(std::mem::replace(&mut self.last_held, held));
        let soon = held.wrapping_add(stride.wrapping_mul(HELD_BEFORE_NEXT));
        if let Some(entry) = self.slots.get(soon as usize) {
            prefetch(entry);
        }
    }

    /// Gives up the place of an entry that is held, and drops what it still has. Nothing happens if
    /// it is not held.
    #[inline]
    pub(super) fn release(&mut self, slot: u32) {
        let free = self.free;
        let Some(entry) = self.slots.get_mut(slot as usize) else {
            return;
        };
        if std::mem::take(&mut entry.is_held) {
            entry.key = Text::default();
            entry.tensor = None;
            entry.next_in_step = free;
            self.free = slot;
        }
    }

    /// Joins the neighbours of an entry that leaves its step. Returns the first of the others.
    #[inline(never)]
    fn close_gap(&mut self, slot: u32, mut first: u32) -> u32 {
        let entry = self.get_mut(slot);
        let next = std::mem::replace(&mut entry.next_in_step, NONE);
        let previous = std::mem::replace(&mut entry.previous_in_step, NONE);
        let (last, left) = (entry.last_in_step, entry.entries_of_step);
        if slot == first {
            first = next;
            let first = self.get_mut(first);
            (first.last_in_step, first.entries_of_step) = (last, left);
        } else {
            self.get_mut(previous).next_in_step = next;
        }
        match next {
            NONE => self.get_mut(first).last_in_step = previous,
            next => self.get_mut(next).previous_in_step = previous,
        }
        self.get_mut(first).entries_of_step -= 1;
        first
    }
}

impl Entry {
    #[inline]
    fn is_of(&self, key_hash: u64, key: &Text) -> bool {
        self.key_hash == key_hash as u32 && self.key == *key
    }

    /// Whether nobody waits for its tensor, or has found it.
    #[inline]
    pub(super) fn is_free(&self) -> bool {
        self.waits == 0 && !self.is_found
    }

    /// Whether it has a tensor that nobody waits for or has found.
    pub(super) fn is_there(&self) -> bool {
        self.tensor.is_some() && self.is_free()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tensor.is_none() && self.waits == 0
    }
}

/// A hash under which 64 steps in a row are neighbours in a table, in an order of their own:
/// whoever works off many steps then finds the next one in a cache line that is at hand. A table
/// takes its place from the lower bits, and from the upper ones what tells neighbours apart.
#[inline]
fn near(step_id: i64, salt: u64, hasher: &RandomState) -> u64 {
    let step = step_id as u64;
    let mut state = hasher.build_hasher();
    state.write_u64(step / NEIGHBOURS);
    state.write_u64(salt);
    let block = state.finish();
    let place = step.wrapping_add(block >> 32) % NEIGHBOURS;
    let upper = block ^ step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (upper & TAG) | (block & !TAG & !(NEIGHBOURS - 1)) | place
}

/// Most entries of all steps together.
pub(super) const ENTRIES_MAX: u32 = NONE;

const NEIGHBOURS: u64 = 64;

/// So many others are held until memory that is not in any cache is there.
const HELD_BEFORE_NEXT: u32 = 8;

/// The bits of a hash that a table compares before it looks at an entry.
const TAG: u64 = 0x7f << 57;
