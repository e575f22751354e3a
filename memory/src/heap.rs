#![expect(
    unsafe_code,
    reason = "takes vectors apart and puts them together again"
)]

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// The memory of a vector, without its length.
#[derive(Debug)]
pub(crate) struct HeapBlock {
    base: NonNull<u8>,
    capacity: usize,
}

// SAFETY: a heap block owns its memory, which any thread may free, and offers no access to it.
unsafe impl Send for HeapBlock {}
// SAFETY: as above; shared references to it can do nothing.
unsafe impl Sync for HeapBlock {}

impl HeapBlock {
    /// The memory of `bytes`, and where it starts.
    pub(crate) fn from_vec(bytes: Vec<u8>) -> (Self, NonNull<u8>) {
        let mut bytes = ManuallyDrop::new(bytes);
        // SAFETY: a vector's pointer is never null. It covers the whole capacity, as freeing needs.
        let base = unsafe { NonNull::new_unchecked(bytes.as_mut_ptr()) };
        let capacity = bytes.capacity();
        (Self { base, capacity }, base)
    }
}

impl Drop for HeapBlock {
    fn drop(&mut self) {
        // SAFETY: base and capacity are those of a vector that was taken apart and never dropped.
        drop(unsafe { Vec::from_raw_parts(self.base.as_ptr(), 0, self.capacity) });
    }
}
