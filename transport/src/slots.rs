//! Values in slots, each named by its slot and a generation, so that an old name never finds a new
//! value.

use std::fmt;
use std::marker::PhantomData;

use crate::LinkId;

/// The name of a value in a [`SlotTable`].
pub trait SlotKey: Copy {
    /// The name of a value in this slot.
    fn new(slot: u32, generation: u32) -> Self;

    /// Index in the table.
    fn slot(self) -> u32;

    /// Tells the users of a slot apart.
    fn generation(self) -> u32;
}

/// A name for values that have no type of names of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId {
    /// Index in the table.
    pub slot: u32,
    /// Tells the users of a slot apart.
    pub generation: u32,
}

/// Values by slot and generation, up to a limit.
///
/// Invariants: `free` heads a list of all vacant slots; `used` counts the others; generations are
/// not 0.
pub struct SlotTable<T, K = SlotId> {
    entries: Vec<Entry<T>>,
    free: u32,
    used: usize,
    limit: usize,
    key: PhantomData<fn() -> K>,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    /// The next vacant slot, if this one is vacant.
    next_free: u32,
    value: Option<T>,
}

/// A slot that has a name before it has a value.
#[derive(Debug)]
pub struct VacantSlot<'a, T, K> {
    key: K,
    entry: &'a mut Entry<T>,
    free: &'a mut u32,
    used: &'a mut usize,
}

/// A value that was found, and may go.
#[derive(Debug)]
pub struct OccupiedSlot<'a, T> {
    slot: u32,
    entry: &'a mut Entry<T>,
    free: &'a mut u32,
    used: &'a mut usize,
}

impl<T, K: SlotKey> SlotTable<T, K> {
    /// An empty table that takes at most `limit` values.
    pub const fn new(limit: usize) -> Self {
        Self {
            entries: Vec::new(),
            free: NONE,
            used: 0,
            limit,
            key: PhantomData,
        }
    }

    /// An empty table whose user limits it.
    pub const fn unlimited() -> Self {
        Self::new(NONE as usize)
    }

    /// Slots in use, those of values taken out included.
    #[inline]
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether no slot is in use.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Slots that there are, in use or not.
    pub fn slots(&self) -> std::ops::Range<u32> {
        0..self.entries.len() as u32
    }

    /// The slot of the next value, unless the table is full. The slot used last is used first,
    /// which is hard on names that are out of date. Inlined, for each call goes through here.
    #[inline(always)]
    pub fn vacant(&mut self) -> Option<VacantSlot<'_, T, K>> {
        if self.free == NONE {
            self.grow();
        }
        let slot = self.free;
        let entry = self.entries.get_mut(slot as usize)?;
        debug_assert!(entry.value.is_none());
        Some(VacantSlot {
            key: K::new(slot, entry.generation),
            entry,
            free: &mut self.free,
            used: &mut self.used,
        })
    }

    /// Makes a slot where none is vacant, unless the table is full.
    #[cold]
    fn grow(&mut self) {
        if self.entries.len() >= self.limit {
            return;
        }
        self.free = u32::try_from(self.entries.len()).expect("limits are below 2^32");
        self.entries.push(Entry {
            generation: 1,
            next_free: NONE,
            value: None,
        });
    }

    /// Takes a value in.
    ///
    /// # Errors
    /// The table is full; the value comes back.
    #[inline]
    pub fn insert(&mut self, value: T) -> Result<K, T> {
        match self.vacant() {
            Some(vacant) => Ok(vacant.insert_with(|| value)),
            None => Err(value),
        }
    }

    /// Takes a value in, made where it stays.
    ///
    /// # Panics
    /// The table is full: its user looks before.
    #[inline(always)]
    pub fn insert_with(&mut self, make: impl FnOnce() -> T) -> K {
        let vacant = self.vacant().expect("the user of the table limits it");
        vacant.insert_with(make)
    }

    /// The value with this name, unless it is gone or taken out.
    #[inline]
    pub fn find(&self, key: K) -> Option<&T> {
        let entry = self.entries.get(key.slot() as usize)?;
        (entry.generation == key.generation()).then_some(entry.value.as_ref())?
    }

    /// The value with this name, to change it.
    #[inline]
    pub fn find_mut(&mut self, key: K) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.slot() as usize)?;
        (entry.generation == key.generation()).then_some(entry.value.as_mut())?
    }

    /// The value with this name, which may go without being looked for a second time.
    #[inline]
    pub fn occupied(&mut self, key: K) -> Option<OccupiedSlot<'_, T>> {
        let entry = self.entries.get_mut(key.slot() as usize)?;
        (entry.generation == key.generation() && entry.value.is_some()).then_some(OccupiedSlot {
            slot: key.slot(),
            entry,
            free: &mut self.free,
            used: &mut self.used,
        })
    }

    /// Takes the value with this name out for ever.
    #[inline]
    pub fn remove(&mut self, key: K) -> Option<T> {
        self.occupied(key).map(OccupiedSlot::remove)
    }

    /// The value that has this slot now, unless it is taken out.
    #[inline]
    pub fn at(&mut self, slot: u32) -> Option<(K, &mut T)> {
        let entry = self.entries.get_mut(slot as usize)?;
        let key = K::new(slot, entry.generation);
        entry.value.as_mut().map(|value| (key, value))
    }

    /// The name of the value that has this slot now.
    pub fn key_at(&self, slot: u32) -> Option<K> {
        let entry = self.entries.get(slot as usize)?;
        (entry.value.is_some()).then_some(K::new(slot, entry.generation))
    }

    /// Takes a value out to work on it; it must be put back, or its slot freed.
    pub fn take(&mut self, slot: u32) -> Option<(K, T)> {
        let entry = self.entries.get_mut(slot as usize)?;
        let key = K::new(slot, entry.generation);
        entry.value.take().map(|value| (key, value))
    }

    /// Ends a [`SlotTable::take`].
    pub fn put_back(&mut self, key: K, value: T) {
        self.entries[key.slot() as usize].value = Some(value);
    }

    /// Ends a [`SlotTable::take`] whose value does not come back.
    pub fn free(&mut self, key: K) {
        let entry = &mut self.entries[key.slot() as usize];
        free(entry, key.slot(), &mut self.free, &mut self.used);
    }

    /// Names and values, in order of slots, without those taken out.
    pub fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        self.entries.iter().zip(0..).filter_map(|(entry, slot)| {
            let value = entry.value.as_ref()?;
            Some((K::new(slot, entry.generation), value))
        })
    }

    /// The names in use, in order of slots.
    pub fn keys(&self) -> impl Iterator<Item = K> {
        self.iter().map(|(key, _)| key)
    }

    /// The values, in order of slots, without those taken out.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter_map(|entry| entry.value.as_ref())
    }

    /// The values, to change them.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries
            .iter_mut()
            .filter_map(|entry| entry.value.as_mut())
    }
}

impl<T, K: SlotKey> VacantSlot<'_, T, K> {
    /// The name that the value will have.
    #[inline]
    pub fn key(&self) -> K {
        self.key
    }

    /// Makes a value where it stays. It is inlined and the last that can fail is behind it when it
    /// does, so that the parts of the value are not put together elsewhere first: a move waits
    /// until they are written.
    #[inline(always)]
    pub fn insert_with(self, make: impl FnOnce() -> T) -> K {
        // A vacant slot has nothing to drop.
        std::mem::forget(self.entry.value.replace(make()));
        *self.free = self.entry.next_free;
        *self.used += 1;
        self.key
    }
}

impl<T> OccupiedSlot<'_, T> {
    /// The value.
    #[inline]
    pub fn get(&self) -> &T {
        self.entry.value.as_ref().expect("it was found")
    }

    /// Takes the value out. Inlined, so that only those of its parts are moved that are wanted.
    #[inline(always)]
    pub fn remove(self) -> T {
        let value = self.entry.value.take().expect("it was found");
        free(self.entry, self.slot, self.free, self.used);
        value
    }
}

/// Makes a slot vacant that has no value.
#[inline(always)]
fn free<T>(entry: &mut Entry<T>, slot: u32, free: &mut u32, used: &mut usize) {
    entry.generation = entry.generation.checked_add(1).unwrap_or(1);
    entry.next_free = *free;
    *free = slot;
    *used -= 1;
}

impl SlotId {
    /// The name as a number, for the wire and for tokens.
    pub fn raw(self) -> u64 {
        u64::from(self.slot) | u64::from(self.generation) << 32
    }

    /// The name that [`SlotId::raw`] made; any other number finds nothing.
    pub fn from_raw(raw: u64) -> Self {
        Self {
            slot: raw as u32,
            generation: (raw >> 32) as u32,
        }
    }
}

impl SlotKey for SlotId {
    #[inline]
    fn new(slot: u32, generation: u32) -> Self {
        Self { slot, generation }
    }

    #[inline]
    fn slot(self) -> u32 {
        self.slot
    }

    #[inline]
    fn generation(self) -> u32 {
        self.generation
    }
}

impl SlotKey for LinkId {
    #[inline]
    fn new(slot: u32, generation: u32) -> Self {
        Self { slot, generation }
    }

    #[inline]
    fn slot(self) -> u32 {
        self.slot
    }

    #[inline]
    fn generation(self) -> u32 {
        self.generation
    }
}

impl<T: fmt::Debug, K> fmt::Debug for SlotTable<T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotTable")
            .field("entries", &self.entries)
            .field("used", &self.used)
            .finish_non_exhaustive()
    }
}

/// Ends the list of vacant slots.
const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_finds_its_own_value_only() {
        let mut slots: SlotTable<char> = SlotTable::unlimited();
        let [a, b] = ['a', 'b'].map(|value| slots.insert(value).unwrap());
        assert_eq!(slots.remove(a), Some('a'));
        assert_eq!(slots.remove(a), None);
        assert!(slots.occupied(a).is_none());
        let d = slots.insert_with(|| 'd');
        let found = slots.occupied(d).unwrap();
        assert_eq!(found.get(), &'d');
        assert_eq!(found.remove(), 'd');
        assert_eq!(slots.find(d), None);
        let c = slots.insert('c').unwrap();
        assert_eq!(c.slot, a.slot);
        assert_eq!(slots.find(a), None);
        assert_eq!(slots.find_mut(c), Some(&mut 'c'));
        assert_eq!(slots.find(SlotId::from_raw(b.raw())), Some(&'b'));
        assert_eq!(slots.key_at(a.slot), Some(c));
        assert_eq!(slots.at(b.slot), Some((b, &mut 'b')));
        assert_eq!(slots.len(), 2);
        assert_eq!(slots.iter().collect::<Vec<_>>(), [(c, &'c'), (b, &'b')]);
        for raw in [0, u64::MAX, 2] {
            assert_eq!(slots.find(SlotId::from_raw(raw)), None);
        }
    }

    #[test]
    fn a_full_table_gives_back_and_slots_are_used_again_before_there_are_more() {
        let mut slots: SlotTable<char> = SlotTable::new(3);
        let [a, b, _] = ['a', 'b', 'c'].map(|value| slots.insert(value).unwrap());
        assert_eq!(slots.insert('d'), Err('d'));
        assert!(slots.vacant().is_none());
        slots.remove(a).unwrap();
        slots.remove(b).unwrap();
        let key = slots.vacant().unwrap().key();
        // A slot that is not used stays vacant.
        let [d, e] = ['d', 'e'].map(|value| slots.insert(value).unwrap());
        assert_eq!((key, d.slot, e.slot), (d, b.slot, a.slot));
        assert_eq!(slots.insert('f'), Err('f'));
        let values: String = slots.values_mut().map(|value| *value).collect();
        assert_eq!(values, "edc");
        assert_eq!(slots.values().copied().collect::<String>(), "edc");
    }

    #[test]
    fn a_value_that_is_taken_out_keeps_its_slot_until_that_is_freed() {
        let mut slots: SlotTable<char, LinkId> = SlotTable::unlimited();
        let a = slots.insert('a').unwrap();
        assert_eq!(slots.take(a.slot), Some((a, 'a')));
        assert_eq!(slots.find(a), None);
        assert_eq!(slots.take(a.slot), None);
        assert_eq!((slots.len(), slots.key_at(a.slot)), (1, None));
        slots.put_back(a, 'b');
        assert_eq!(slots.find(a), Some(&'b'));
        slots.take(a.slot).unwrap();
        slots.free(a);
        assert!(slots.is_empty());
        let c = slots.insert('c').unwrap();
        assert_eq!((c.slot, slots.find(a)), (a.slot, None));
    }

    #[test]
    fn a_generation_is_never_zero() {
        let mut slots: SlotTable<u8> = SlotTable::unlimited();
        let first = slots.insert(0).unwrap();
        slots.entries[0].generation = u32::MAX;
        let last = SlotId::new(first.slot, u32::MAX);
        slots.remove(last).unwrap();
        assert_eq!(slots.insert(0), Ok(first));
    }
}
