//! Every interleaving of the few places where threads meet: giving blocks back, counting
//! references, closing an arena while its buffers are still out. Each access to a block's bytes is
//! reported to loom, so a missing ordering fails here too, and so does memory that nobody frees.
//!
//! `scripts/nightly loom` runs it.
#![cfg(loom)]

use grpcxx_memory::{Arena, ArenaOptions, BufferMut, DropBatch, Parts};
use loom::thread;

/// One page, so that a block can only be had again once it came back.
fn one_page() -> Arena {
    Arena::new(ArenaOptions::default().with(|options| {
        options.capacity_bytes = PAGE_BYTES;
        options.huge_pages = false;
    }))
    .expect("a page of memory")
}

fn filled(arena: &mut Arena, len: usize, value: u8) -> BufferMut {
    let mut buffer = arena.allocate(len).expect("nothing else is out");
    buffer.fill(value);
    buffer
}

#[test]
fn the_last_of_three_references_gives_the_block_back() {
    loom::model(|| {
        let mut arena = one_page();
        let shared = filled(&mut arena, PAGE_BYTES, 1).freeze();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let part = shared.slice(8..16);
                thread::spawn(move || {
                    let copy = part.clone();
                    drop(part);
                    assert_eq!(copy[..], [1; 8]);
                })
            })
            .collect();
        drop(shared);
        for thread in threads {
            thread.join().expect("no panic");
        }
        assert!(arena.allocate(PAGE_BYTES).is_ok());
    });
}

#[test]
fn references_that_are_counted_at_once_go_one_by_one_and_the_rest_together() {
    loom::model(|| {
        let mut arena = one_page();
        let mut parts = Parts::new(filled(&mut arena, PAGE_BYTES, 1).freeze(), 3);
        let part = parts.cut(8..16);
        let thread = thread::spawn(move || assert_eq!(part[..], [1; 8]));
        drop(parts);
        thread.join().expect("no panic");
        assert!(arena.allocate(PAGE_BYTES).is_ok());
    });
}

#[test]
fn references_that_wait_to_be_dropped_together_keep_the_block_until_then() {
    loom::model(|| {
        let mut arena = one_page();
        let shared = filled(&mut arena, PAGE_BYTES, 1).freeze();
        let part = shared.slice(8..16);
        let thread = thread::spawn(move || assert_eq!(part[..], [1; 8]));
        let together = DropBatch::begin();
        drop(shared.clone());
        drop(shared);
        drop(arena);
        drop(together);
        thread.join().expect("no panic");
    });
}

#[test]
fn a_block_is_used_again_after_another_thread_is_done_with_it() {
    loom::model(|| {
        let mut arena = one_page();
        let mut unique = filled(&mut arena, PAGE_BYTES, 1);
        let thread = thread::spawn(move || unique.fill(2));
        if let Ok(mut again) = arena.allocate(PAGE_BYTES) {
            again.fill(3);
        }
        thread.join().expect("no panic");
        assert!(arena.allocate(PAGE_BYTES).is_ok());
    });
}

#[test]
fn blocks_come_back_from_two_threads_while_the_owner_looks() {
    loom::model(|| {
        let mut arena = one_page();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let mut unique = filled(&mut arena, 64, 1);
                thread::spawn(move || unique.fill(2))
            })
            .collect();
        arena.reclaim();
        for thread in threads {
            thread.join().expect("no panic");
        }
        arena.reclaim();
        assert_eq!(arena.statistics().blocks, 0);
        assert_eq!(arena.statistics().in_use_bytes, 0);
    });
}

#[test]
fn exactly_one_frees_a_closed_arena() {
    loom::model(|| {
        let mut arena = one_page();
        let unique = filled(&mut arena, 64, 1);
        let shared = filled(&mut arena, 64, 2).freeze();
        let threads = [
            thread::spawn(move || drop(unique)),
            thread::spawn(move || drop(shared)),
        ];
        drop(arena);
        for thread in threads {
            thread.join().expect("no panic");
        }
    });
}

#[test]
fn whoever_is_alone_may_write() {
    loom::model(|| {
        let mut arena = one_page();
        let shared = filled(&mut arena, PAGE_BYTES, 1).freeze();
        let other = shared.clone();
        let thread = thread::spawn(move || match other.try_into_mut() {
            Ok(mut unique) => {
                unique.fill(2);
                true
            }
            Err(_shared) => false,
        });
        let here = match shared.try_into_mut() {
            Ok(mut unique) => {
                unique.fill(3);
                true
            }
            Err(_shared) => false,
        };
        let there = thread.join().expect("no panic");
        assert!(!(here && there), "both were alone");
        assert_eq!(arena.reclaim(), 1);
    });
}

const PAGE_BYTES: usize = 4096;
