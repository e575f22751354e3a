use std::os::fd::BorrowedFd;

/// A range of addresses that memory is handed out from.
///
/// Links that share or register whole arenas use it to turn a buffer into an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// Address of the first byte.
    pub base: usize,
    /// Length in bytes.
    pub len: usize,
    /// What kind of memory it is.
    pub kind: RegionKind,
}

/// How another process can see the memory of an arena.
#[derive(Clone, Copy, Debug)]
pub struct SharedMemory<'a> {
    /// What to map. Its memory is sealed: nobody else can write it, whatever way it is opened.
    pub descriptor: BorrowedFd<'a>,
    /// The addresses that it has in this process; byte 0 of the descriptor is the first of them.
    pub region: Region,
    /// Tells it apart from every other arena that this process has or had.
    pub serial: u64,
}

/// The kinds of memory a [`Region`] may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RegionKind {
    /// Memory that the CPU reads and writes, private to this process.
    Host,
    /// Memory of another device, as a GPU, which the CPU cannot reach.
    Device,
}

impl Region {
    /// Offset in bytes of `part` from the base, or `None` unless all of it lies in the region.
    pub fn offset_of(&self, part: &[u8]) -> Option<usize> {
        let offset = part.as_ptr().addr().checked_sub(self.base)?;
        let end = offset.checked_add(part.len())?;
        (end <= self.len).then_some(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_parts_have_an_offset() {
        let bytes = [0u8; 16];
        let region = Region {
            base: bytes.as_ptr().addr() + 4,
            len: 8,
            kind: RegionKind::Host,
        };
        assert_eq!(region.offset_of(&bytes[4..12]), Some(0));
        assert_eq!(region.offset_of(&bytes[6..7]), Some(2));
        assert_eq!(region.offset_of(&bytes[12..12]), Some(8));
        assert_eq!(region.offset_of(&bytes[3..5]), None);
        assert_eq!(region.offset_of(&bytes[11..13]), None);
    }
}
