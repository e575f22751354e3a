//! What an arena hands out, takes home, and gives back to the system.

use super::*;
use crate::Buffer;

fn arena(capacity_bytes: usize) -> Arena {
    Arena::new(ArenaOptions {
        capacity_bytes,
        huge_pages: false,
        ..ArenaOptions::default()
    })
    .unwrap()
}

/// Bytes of every page; all of them would take Miri minutes.
fn sample(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes
        .iter()
        .copied()
        .step_by(if cfg!(miri) { 4001 } else { 1 })
}

fn is_aligned(buffer: &BufferMut, align_bytes: usize) -> bool {
    buffer.as_ptr().addr().is_multiple_of(align_bytes)
}

#[test]
fn blocks_have_their_length_and_alignment() {
    let mut arena = arena(1 << 20);
    for len in [1, 63, 64, 65, 2048, 2049, 4095] {
        let buffer = arena.allocate(len).unwrap();
        assert!(buffer.len() == len && is_aligned(&buffer, 64));
    }
    for len in [4096, 4097, 100_000] {
        let buffer = arena.allocate(len).unwrap();
        assert!(buffer.len() == len && is_aligned(&buffer, 4096));
    }
    let empty = arena.allocate(0).unwrap();
    assert!(empty.is_empty() && !empty.is_arena());
}

#[test]
fn a_full_arena_refuses_and_recovers() {
    let mut arena = arena(64 << 10);
    let error = arena.allocate((64 << 10) + 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "arena of 65536 bytes has no block of 65537 bytes left (0 bytes in use)"
    );
    let all = arena.allocate(64 << 10).unwrap();
    assert_eq!(arena.allocate(1).unwrap_err().in_use_bytes, 64 << 10);
    assert_eq!(
        arena.allocate(usize::MAX).unwrap_err().requested_bytes,
        usize::MAX
    );
    drop(all);
    let small: Vec<BufferMut> = (0..1024).map(|_| arena.allocate(64).unwrap()).collect();
    assert!(arena.allocate(64).is_err());
    drop(small);
    assert!(arena.allocate(64 << 10).is_ok());
    assert_eq!(arena.statistics().failed_allocations, 4);
}

#[test]
fn one_block_may_take_most_of_an_arena_in_use() {
    let mut arena = arena(1 << 20);
    let small = arena.allocate(64).unwrap();
    let most = arena.allocate(900 << 10).unwrap();
    assert!(is_aligned(&most, 4096));
    drop((small, most));
    assert!(arena.allocate(1 << 20).is_ok());
}

#[test]
fn announced_memory_is_filled_in_place() {
    let mut arena = arena(8 << 20);
    let mut memory = arena.reserve(1 << 20, 10_000).unwrap();
    memory.fill(1);
    assert_eq!(arena.statistics().in_use_bytes, 3 * 4096);
    assert_eq!(arena.statistics().reserved_bytes, (1 << 20) - 3 * 4096);
    let start = memory.as_ptr();
    for len in [20_000, 500_000, 1 << 20] {
        let filled = memory.len();
        memory = arena.grow(memory, len, 1 << 20).unwrap();
        assert_eq!((memory.len(), memory.as_ptr()), (len, start));
        assert!(sample(&memory[..filled]).all(|byte| byte == 1));
        memory.fill(1);
    }
    let statistics = arena.statistics();
    assert_eq!(
        (statistics.in_use_bytes, statistics.reserved_bytes),
        (1 << 20, 0)
    );
    drop(memory);
    arena.reclaim();
    assert_eq!(arena.statistics().in_use_bytes, 0);
}

#[test]
fn announcements_keep_nothing_from_others() {
    let mut arena = arena(2 << 20);
    let announced: Vec<BufferMut> = std::iter::from_fn(|| arena.reserve(64 << 10, 4096)).collect();
    assert_eq!(announced.len(), 4, "no more than an eighth");
    let rest = arena.allocate(1792 << 10).unwrap();
    assert!(arena.allocate(1000).is_ok());
    let large = arena.allocate(48 << 10).unwrap();
    assert_eq!(arena.statistics().reserved_bytes, 3 * (60 << 10));
    drop(rest);
    drop(large);
    assert!(announced.iter().all(|memory| memory.len() == 4096));
    drop(announced);
    assert!(arena.allocate(2 << 20).is_ok());
}

#[test]
fn what_lost_its_reservation_grows_elsewhere() {
    let mut arena = arena(1 << 20);
    let memory = arena.allocate(4096).unwrap();
    let mut memory = arena.grow(memory, 8192, 600 << 10).unwrap();
    memory.fill(7);
    let other = arena.allocate(600 << 10).unwrap();
    let mut memory = arena.grow(memory, 20_000, 600 << 10).unwrap();
    assert_eq!(memory.len(), 20_000, "there is place for no reservation");
    assert!(sample(&memory[..8192]).all(|byte| byte == 7));
    memory.fill(8);
    drop(other);
    let memory = arena.grow(memory, 50_000, 600 << 10).unwrap();
    assert!(sample(&memory[..20_000]).all(|byte| byte == 8));
    assert!(arena.statistics().reserved_bytes > 500 << 10);
    let start = memory.as_ptr();
    let memory = arena.grow(memory, 600 << 10, 600 << 10).unwrap();
    assert_eq!((memory.as_ptr(), memory.len()), (start, 600 << 10));
}

#[test]
fn memory_that_finds_no_place_to_grow_is_dropped() {
    let mut arena = arena(256 << 10);
    let memory = arena.allocate(4096).unwrap();
    let other = arena.allocate(128 << 10).unwrap();
    assert!(arena.grow(memory, 150 << 10, 200 << 10).is_err());
    drop(other);
    arena.reclaim();
    assert_eq!(arena.statistics().blocks, 0);
    let heap = arena.grow(BufferMut::from(vec![1; 10]), 100, 100).unwrap();
    assert_eq!(heap[..10], [1; 10]);
}

#[test]
fn some_memory_is_kept_for_small_requests() {
    let mut arena = arena(1 << 20);
    arena.keep_for_small(256 << 10);
    assert!(arena.allocate(900 << 10).is_err());
    let large = arena.allocate(700 << 10).unwrap();
    assert!(arena.allocate(100 << 10).is_err());
    assert!(arena.reserve(200 << 10, 80 << 10).is_none());
    let announced = arena.reserve(100 << 10, 4096).unwrap();
    assert!(arena.grow(announced, 100 << 10, 100 << 10).is_err());
    let small: Vec<BufferMut> = (0..4).map(|_| arena.allocate(64 << 10).unwrap()).collect();
    drop((large, small));
    assert!(arena.allocate(700 << 10).is_ok());
}

#[test]
fn statistics_count_blocks_and_bytes() {
    let mut arena = arena(1 << 20);
    let (first, second) = (arena.allocate(100).unwrap(), arena.allocate(5000).unwrap());
    let both = ArenaStatistics {
        capacity_bytes: 1 << 20,
        in_use_bytes: 128 + 8192,
        peak_bytes: 128 + 8192,
        beyond_bytes: 0,
        idle_bytes: 0,
        reserved_bytes: 0,
        blocks: 2,
        failed_allocations: 0,
    };
    assert_eq!(arena.statistics(), both);
    drop((first, second));
    assert_eq!(arena.reclaim(), 2);
    assert_eq!(arena.reclaim(), 0);
    let none = ArenaStatistics {
        in_use_bytes: 0,
        idle_bytes: both.in_use_bytes,
        blocks: 0,
        ..both
    };
    assert_eq!(arena.statistics(), none);
    arena.trim();
    assert_eq!(arena.statistics().idle_bytes, 0);
    assert_eq!(arena.statistics().peak_bytes, both.peak_bytes);
}

#[test]
fn trim_gives_back_what_is_free_and_nothing_else() {
    let mut arena = arena(16 << 20);
    let mut kept = arena.allocate(1 << 20).unwrap();
    kept.fill(1);
    let mut burst = arena.allocate(8 << 20).unwrap();
    burst.fill(2);
    let burst_start = burst.as_ptr();
    drop(burst);
    assert_eq!(arena.trim(), (8 + 4 + 2) << 20);
    assert!(sample(&kept).all(|byte| byte == 1));
    let again = arena.allocate(8 << 20).unwrap();
    assert_eq!(again.as_ptr(), burst_start);
    assert!(sample(&again).all(|byte| byte == 0));
}

#[test]
#[cfg(not(miri))]
fn shared_memory_can_be_read_elsewhere_and_keeps_its_pages() {
    use std::os::unix::fs::{FileExt, MetadataExt};
    let mut arena = Arena::new(ArenaOptions {
        capacity_bytes: 16 << 20,
        huge_pages: true,
        shared: true,
        ..ArenaOptions::default()
    })
    .unwrap();
    let mut kept = arena.allocate(1 << 20).unwrap();
    kept.fill(1);
    let mut burst = arena.allocate(8 << 20).unwrap();
    burst.fill(2);
    let kept = kept.freeze();
    let offset = kept.region().unwrap().offset_of(&kept).unwrap();
    let shared = kept.shared_memory().unwrap();
    assert_eq!(shared.region, kept.region().unwrap());
    let descriptor = shared.descriptor.try_clone_to_owned().unwrap();
    let file = std::fs::File::from(descriptor);
    let mut seen = vec![0; kept.len()];
    file.read_exact_at(&mut seen, offset as u64).unwrap();
    assert_eq!(seen, kept[..]);
    assert!(file.write_at(&[3], 0).is_err(), "nobody else may write");
    assert!(file.set_len(0).is_err(), "nor take the memory away");
    let held_bytes = || file.metadata().unwrap().blocks() * 512;
    assert!(held_bytes() >= 9 << 20);
    drop(burst);
    assert_eq!(arena.trim(), 0);
    assert!(held_bytes() >= 9 << 20);
    drop(arena);
    assert!(kept.iter().all(|&byte| byte == 1));
    assert!(Buffer::from(vec![1]).shared_memory().is_none());
}

#[test]
fn an_arena_that_keeps_its_pages_trims_nothing() {
    let mut arena = arena(8 << 20);
    let mut burst = arena.allocate(4 << 20).unwrap();
    burst.fill(2);
    drop(burst);
    arena.keep_pages();
    assert_eq!(arena.trim(), 0);
    let again = arena.allocate(4 << 20).unwrap();
    assert!(sample(&again).all(|byte| byte == 2));
}

#[test]
fn buffers_outlive_their_arena() {
    let mut arena = arena(1 << 20);
    let mut unique = arena.allocate(1000).unwrap();
    unique.fill(3);
    let mut shared = arena.allocate(10_000).unwrap();
    shared.fill(4);
    let shared = shared.freeze();
    drop(arena.allocate(64));
    drop(arena);
    assert!(unique.iter().all(|&byte| byte == 3));
    let part = shared.slice(5000..);
    drop((unique, shared));
    assert!(part.len() == 5000 && part.iter().all(|&byte| byte == 4));
}

#[test]
fn a_buffer_knows_its_region() {
    let mut arena = arena(1 << 20);
    let region = arena.region();
    assert_eq!(region.len, 1 << 20);
    let first = arena.allocate(4096).unwrap();
    assert_eq!(first.region(), Some(region));
    assert_eq!(region.offset_of(&first), Some(0));
    let second = arena.allocate(4096).unwrap().freeze().slice(8..);
    assert_eq!(second.region(), Some(region));
    assert_eq!(region.offset_of(&second), Some(4096 + 8));
    assert_eq!(Buffer::from(vec![1]).region(), None);
}

#[test]
fn capacities_without_sense_are_errors() {
    for capacity_bytes in [0, ARENA_BYTES_MAX + 1, usize::MAX] {
        let options = ArenaOptions {
            capacity_bytes,
            huge_pages: true,
            ..ArenaOptions::default()
        };
        assert_eq!(
            Arena::new(options).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
    }
}

#[test]
fn debug_shows_numbers_only() {
    let mut arena = arena(1 << 20);
    let buffer = arena.allocate(3).unwrap();
    assert_eq!(format!("{buffer:?}"), "BufferMut(3 bytes, arena)");
    assert_eq!(format!("{:?}", buffer.freeze()), "Buffer(3 bytes, arena)");
    assert!(format!("{arena:?}").len() < 200);
}
