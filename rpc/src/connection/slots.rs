/// A place in [`Slots`] and the life of what is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct SlotId {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

/// Values by slot and generation; an id never finds a later value in the same slot.
///
/// Invariants: `free` heads a list of all vacant slots; `occupied` counts the others; generations are not 0.
#[derive(Debug)]
pub(super) struct Slots<T> {
    entries: Vec<Entry<T>>,
    free: u32,
    occupied: usize,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    /// The next vacant slot, if this one is vacant.
    next_free: u32,
    value: Option<T>,
}

/// A value that was found, and may go.
#[derive(Debug)]
pub(super) struct Occupied<'a, T> {
    slot: u32,
    entry: &'a mut Entry<T>,
    free: &'a mut u32,
    occupied: &'a mut usize,
}

impl SlotId {
    /// The id on the wire and in tokens.
    pub(super) fn raw(self) -> u64 {
        u64::from(self.slot) | u64::from(self.generation) << 32
    }

    /// The id that [`SlotId::raw`] made; any other number finds nothing.
    pub(super) fn from_raw(raw: u64) -> Self {
        Self {
            slot: raw as u32,
            generation: (raw >> 32) as u32,
        }
    }
}

impl<T> Slots<T> {
    pub(super) fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: NONE,
            occupied: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.occupied
    }

    #[inline]
    pub(super) fn insert(&mut self, value: T) -> SlotId {
        self.insert_with(|| value)
    }

    /// Makes a value where it stays. It is inlined and the last that can fail is behind it when it does, so that the parts
    /// of the value are not put together elsewhere first: a move waits until they are written.
    #[inline(always)]
    pub(super) fn insert_with(&mut self, make: impl FnOnce() -> T) -> SlotId {
        if self.free == NONE {
            self.grow();
        }
        let slot = self.free;
        let entry = &mut self.entries[slot as usize];
        debug_assert!(entry.value.is_none());
        // A vacant slot has nothing to drop.
        std::mem::forget(entry.value.replace(make()));
        self.free = entry.next_free;
        self.occupied += 1;
        SlotId {
            slot,
            generation: entry.generation,
        }
    }

    /// Makes a slot where none is vacant.
    #[cold]
    fn grow(&mut self) {
        let slot = u32::try_from(self.entries.len()).expect("the limits keep slots below 2^32");
        self.entries.push(Entry {
            generation: 1,
            next_free: NONE,
            value: None,
        });
        self.free = slot;
    }

    #[inline]
    pub(super) fn get(&self, id: SlotId) -> Option<&T> {
        let entry = self.entries.get(id.slot as usize)?;
        (entry.generation == id.generation).then_some(entry.value.as_ref())?
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: SlotId) -> Option<&mut T> {
        let entry = self.entries.get_mut(id.slot as usize)?;
        (entry.generation == id.generation).then_some(entry.value.as_mut())?
    }

    #[inline]
    pub(super) fn remove(&mut self, id: SlotId) -> Option<T> {
        self.find(id).map(Occupied::remove)
    }

    /// A value that may go, without being looked for a second time.
    #[inline]
    pub(super) fn find(&mut self, id: SlotId) -> Option<Occupied<'_, T>> {
        let entry = self.entries.get_mut(id.slot as usize)?;
        (entry.generation == id.generation && entry.value.is_some()).then_some(Occupied {
            slot: id.slot,
            entry,
            free: &mut self.free,
            occupied: &mut self.occupied,
        })
    }

    /// The id of what is in a slot now.
    pub(super) fn id_of(&self, slot: u32) -> Option<SlotId> {
        let entry = self.entries.get(slot as usize)?;
        entry.value.is_some().then_some(SlotId {
            slot,
            generation: entry.generation,
        })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SlotId, &T)> {
        self.entries.iter().zip(0..).filter_map(|(entry, slot)| {
            let value = entry.value.as_ref()?;
            let id = SlotId {
                slot,
                generation: entry.generation,
            };
            Some((id, value))
        })
    }
}

impl<T> Occupied<'_, T> {
    #[inline]
    pub(super) fn get(&self) -> &T {
        self.entry.value.as_ref().expect("it was found")
    }

    /// Takes the value out. Inlined, so that only those of its parts are moved that are wanted.
    #[inline(always)]
    pub(super) fn remove(self) -> T {
        let value = self.entry.value.take().expect("it was found");
        self.entry.generation = self.entry.generation.checked_add(1).unwrap_or(1);
        self.entry.next_free = *self.free;
        *self.free = self.slot;
        *self.occupied -= 1;
        value
    }
}

const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_finds_its_own_value_only() {
        let mut slots = Slots::new();
        let a = slots.insert('a');
        let b = slots.insert('b');
        assert_eq!(slots.remove(a), Some('a'));
        assert_eq!(slots.remove(a), None);
        assert!(slots.find(a).is_none());
        let d = slots.insert('d');
        let found = slots.find(d).unwrap();
        assert_eq!(found.get(), &'d');
        assert_eq!(found.remove(), 'd');
        assert_eq!(slots.get(d), None);
        let c = slots.insert('c');
        assert_eq!(c.slot, a.slot);
        assert_eq!(slots.get(a), None);
        assert_eq!(slots.get_mut(c), Some(&mut 'c'));
        assert_eq!(slots.get(SlotId::from_raw(b.raw())), Some(&'b'));
        assert_eq!(slots.id_of(a.slot), Some(c));
        assert_eq!(slots.len(), 2);
        let mut all: Vec<_> = slots.iter().collect();
        all.sort();
        assert_eq!(all, [(c, &'c'), (b, &'b')]);
        for raw in [0, u64::MAX, 2] {
            assert_eq!(slots.get(SlotId::from_raw(raw)), None);
        }
    }

    #[test]
    fn a_generation_is_never_zero() {
        let mut slots = Slots::new();
        let id = slots.insert(0);
        slots.entries[0].generation = u32::MAX;
        let last = SlotId {
            generation: u32::MAX,
            ..id
        };
        slots.remove(last).unwrap();
        assert_eq!(slots.insert(0), id);
    }
}
