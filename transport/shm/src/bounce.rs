use grpcxx_memory::{Arena, ArenaOptions, BufferMut};

use crate::ShmOptions;

/// Memory that peers can map, for payloads that lie elsewhere: copied there, they are lent. All
/// links of a transport share it. It is taken from the system when the first payload is copied.
#[derive(Debug)]
pub(crate) struct Bounce {
    capacity_bytes: usize,
    arena: Option<Arena>,
}

impl Bounce {
    pub(crate) fn new(options: &ShmOptions) -> Self {
        Self {
            capacity_bytes: options.bounce_arena_bytes,
            arena: None,
        }
    }

    /// Memory of this length; `None` if none is left, or if the system has none to share.
    pub(crate) fn allocate(&mut self, len: usize) -> Option<BufferMut> {
        if len > self.capacity_bytes {
            return None;
        }
        if self.arena.is_none() {
            let arena = Arena::new(ArenaOptions::default().with(|options| {
                options.capacity_bytes = self.capacity_bytes;
                options.huge_pages = true;
                options.shared = true;
            }));
            if arena.is_err() {
                // Nor will it be had later: it is asked for once.
                self.capacity_bytes = 0;
            }
            self.arena = arena.ok();
        }
        self.arena.as_mut()?.allocate(len).ok()
    }

    /// Gives the memory back to the system, but for what is lent.
    pub(crate) fn release(&mut self) {
        self.arena = None;
    }
}
