/// What a table has room for.
///
/// A hash table marks the places of entries that were removed. With room for twice its entries it
/// clears the marks up in place; a fuller one grows, at some moment when its number of entries has
/// long been the same.
#[derive(Debug, Default)]
pub(super) struct Room {
    entries: usize,
}

impl Room {
    /// How many entries to reserve before one is added to `len`.
    pub(super) fn lacking(&mut self, len: usize) -> usize {
        if self.entries > 2 * len {
            return 0;
        }
        self.entries = 4 * (len + 1);
        self.entries - len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_room_for_twice_its_entries() {
        let mut room = Room::default();
        let reserved: Vec<usize> = (0..9).map(|len| room.lacking(len)).collect();
        assert_eq!(reserved, [4, 0, 10, 0, 0, 0, 22, 0, 0]);
        assert_eq!((room.lacking(8), room.lacking(0)), (0, 0));
    }
}
