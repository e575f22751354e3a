use crate::LinkId;

/// Values in slots whose generation grows with each use, so that an old id never finds a new value.
#[derive(Debug)]
pub(super) struct Table<V> {
    slots: Vec<Slot<V>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<V> {
    generation: u32,
    value: Option<V>,
}

impl<V> Table<V> {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// The slot used last is used first, which is hard on ids that are out of date.
    pub(super) fn insert(&mut self, value: V) -> LinkId {
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

    pub(super) fn find(&mut self, id: LinkId) -> Option<&mut V> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        (slot.generation == id.generation)
            .then_some(slot.value.as_mut())
            .flatten()
    }

    /// Takes a value out to work on it; it must be put back, or its slot freed.
    pub(super) fn take(&mut self, slot: usize) -> Option<(LinkId, V)> {
        let entry = self.slots.get_mut(slot)?;
        let id = LinkId {
            slot: slot as u32,
            generation: entry.generation,
        };
        entry.value.take().map(|value| (id, value))
    }

    pub(super) fn put_back(&mut self, id: LinkId, value: V) {
        self.slots[id.slot as usize].value = Some(value);
    }

    pub(super) fn free(&mut self, id: LinkId) {
        self.free.push(id.slot);
    }
}
