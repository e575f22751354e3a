use crate::LinkId;

/// Values in slots whose generation grows with each use, so that an old id never finds a new value.
#[derive(Debug)]
pub struct LinkTable<V> {
    slots: Vec<Slot<V>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<V> {
    generation: u32,
    value: Option<V>,
}

impl<V> LinkTable<V> {
    /// An empty table.
    pub const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Slots in use, those of values taken out included.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether no slot is in use.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Slots that there are, in use or not.
    pub fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// Takes a value in. The slot used last is used first, which is hard on ids that are out of date.
    pub fn insert(&mut self, value: V) -> LinkId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                value: None,
            });
            self.slots.len() as u32 - 1
        });
        let entry = &mut self.slots[slot as usize];
        entry.generation += 1;
        entry.value = Some(value);
        LinkId {
            slot,
            generation: entry.generation,
        }
    }

    /// The value with this id, unless it is gone or taken out.
    pub fn find(&mut self, id: LinkId) -> Option<&mut V> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        (slot.generation == id.generation)
            .then_some(slot.value.as_mut())
            .flatten()
    }

    /// The values, in order of their slots, without those taken out.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }

    /// The value that now has this slot, unless it is taken out.
    pub fn at(&mut self, slot: usize) -> Option<(LinkId, &mut V)> {
        let entry = self.slots.get_mut(slot)?;
        let id = LinkId {
            slot: slot as u32,
            generation: entry.generation,
        };
        entry.value.as_mut().map(|value| (id, value))
    }

    /// Takes a value out to work on it; it must be put back, or its slot freed.
    pub fn take(&mut self, slot: usize) -> Option<(LinkId, V)> {
        let entry = self.slots.get_mut(slot)?;
        let id = LinkId {
            slot: slot as u32,
            generation: entry.generation,
        };
        entry.value.take().map(|value| (id, value))
    }

    /// Ends a [`LinkTable::take`].
    pub fn put_back(&mut self, id: LinkId, value: V) {
        self.slots[id.slot as usize].value = Some(value);
    }

    /// Frees the slot of a value that was taken out.
    pub fn free(&mut self, id: LinkId) {
        self.free.push(id.slot);
    }
}

impl<V> Default for LinkTable<V> {
    fn default() -> Self {
        Self::new()
    }
}
