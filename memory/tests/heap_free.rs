//! Counts what the steady state allocates on the heap: nothing.
#![cfg(not(loom))]
#![expect(unsafe_code, reason = "a global allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use grpcxx_memory::{Arena, ArenaOptions, Buffer};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends may allocate after its counter is gone; such are not ours.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: passes every request on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller states.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as the caller states.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller states.
        unsafe { System.realloc(start, layout, len) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Blocks of every class and some spans, several at a time, with slices that outlive their buffers.
fn round(arena: &mut Arena, number: usize, kept: &mut Vec<Buffer>) {
    for (index, len) in LENGTHS.into_iter().enumerate() {
        let mut unique = arena.allocate(len + number % 64).expect("room");
        unique[0] = index as u8;
        let shared = unique.freeze();
        let copy = shared.clone();
        kept.push(copy.slice(..1));
        drop(shared);
        let mut again = arena.allocate(64).expect("room");
        again.truncate(1);
        kept.push(again.freeze());
    }
    for (index, pair) in kept.chunks(2).enumerate() {
        assert_eq!(pair[0][..], [index as u8]);
    }
    kept.clear();
}

#[test]
fn ten_thousand_rounds_leave_the_heap_alone() {
    let mut arena = Arena::new(ArenaOptions::default().with(|options| {
        options.capacity_bytes = 64 << 20;
        options.huge_pages = false;
    }))
    .expect("address space");
    let mut kept = Vec::with_capacity(2 * LENGTHS.len());
    round(&mut arena, 0, &mut kept);
    let rounds = if cfg!(miri) { 20 } else { 10_000 };
    let before = ALLOCATIONS.get();
    for number in 0..rounds {
        round(&mut arena, number, &mut kept);
    }
    arena.trim();
    assert_eq!(ALLOCATIONS.get() - before, 0);

    let counted = ALLOCATIONS.get();
    drop(Buffer::from(vec![1]));
    assert!(ALLOCATIONS.get() > counted, "the counter counts");
}

const LENGTHS: [usize; 10] = [1, 100, 200, 500, 1000, 1900, 4000, 10_000, 100_000, 1 << 20];
