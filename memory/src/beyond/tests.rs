use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::{Arena, ArenaOptions, BufferMut, Headroom, Shortage};

const MIB: usize = 1 << 20;

/// An arena of 4 MiB, on a machine of 1 GiB of which so much is free.
fn arena(free_bytes: &Arc<AtomicU64>) -> Arena {
    let free_bytes = Arc::clone(free_bytes);
    let free = move || Some(free_bytes.load(Ordering::Relaxed));
    of(Headroom::new(1 << 30, free))
}

fn of(headroom: Headroom) -> Arena {
    let options = ArenaOptions::default().with(|options| {
        options.capacity_bytes = 4 * MIB;
        options.huge_pages = false;
        options.headroom = Some(headroom);
    });
    Arena::new(options).unwrap()
}

fn free(mib: u64) -> Arc<AtomicU64> {
    Arc::new(AtomicU64::new(mib << 20))
}

#[test]
fn what_is_free_is_taken_and_given_back() {
    let mut arena = arena(&free(600));
    let inside = arena.allocate(MIB).unwrap();
    assert!(!arena.is_beyond());
    let large = arena.allocate(64 * MIB).unwrap();
    let statistics = arena.statistics();
    assert_eq!(
        (statistics.in_use_bytes, statistics.capacity_bytes),
        (MIB, 4 * MIB)
    );
    assert_eq!(statistics.beyond_bytes, 64 * MIB);
    assert_eq!(statistics.peak_bytes, 65 * MIB);
    assert_eq!((statistics.blocks, statistics.failed_allocations), (2, 0));
    arena.give_back();
    assert!(arena.is_beyond(), "it is in use");
    drop(large);
    assert_eq!(arena.reclaim(), 1);
    assert!(arena.is_beyond());
    arena.give_back();
    assert!(!arena.is_beyond());
    assert_eq!(
        (arena.statistics().beyond_bytes, arena.statistics().blocks),
        (0, 1)
    );
    drop(inside);
}

#[test]
fn small_requests_go_on_where_the_capacity_is_used_up() {
    let mut arena = arena(&free(600));
    let kept: Vec<BufferMut> = (0..100).map(|_| arena.allocate(100_000).unwrap()).collect();
    let statistics = arena.statistics();
    assert!(statistics.in_use_bytes <= 4 * MIB && statistics.beyond_bytes >= 5 * MIB);
    drop(kept);
    assert_eq!(arena.reclaim(), 100);
}

#[test]
fn what_grows_moves_there_with_its_bytes() {
    let mut arena = arena(&free(600));
    let mut memory = arena.allocate(1000).unwrap();
    memory.fill(1);
    memory = arena.grow(memory, 2000, 100 * MIB).unwrap();
    assert!(
        arena.statistics().beyond_bytes < 100_000,
        "only what has come"
    );
    let start = memory.as_ptr();
    while memory.len() < 100 * MIB {
        let len = memory.len();
        memory[len - 1] = 7;
        memory = arena
            .grow(memory, (4 * len).min(100 * MIB), 100 * MIB)
            .unwrap();
        assert_eq!((memory[len - 1], memory[0]), (7, 1));
        assert_eq!(memory.as_ptr(), start, "it grows in place");
    }
    assert_eq!(arena.reclaim(), 1);
    assert_eq!(arena.statistics().in_use_bytes, 0);
    drop(arena);
    assert_eq!(memory[0], 1, "memory outlives its arena");
}

#[test]
fn a_refusal_says_what_was_allowed_and_why() {
    let free_bytes = free(200);
    let mut arena = arena(&free_bytes);
    let refused = arena.allocate(100 * MIB).unwrap_err();
    let shortage = Shortage::Memory {
        allowed_bytes: 72 << 20,
        free_bytes: 200 << 20,
        kept_bytes: 128 << 20,
    };
    assert_eq!(refused.beyond, Some(shortage));
    assert_eq!(
        refused.to_string(),
        "arena of 4194304 bytes has no block of 104857600 bytes left (0 bytes in use); beyond it \
         75497472 bytes are allowed now, since 209715200 bytes of the memory of this machine or \
         control group are free, and 134217728 of them are kept unused"
    );
    assert!(arena.check_announced(100 * MIB).is_err() && arena.check_announced(3 * MIB).is_ok());
    assert!(arena.begin_beyond(100 * MIB, 1).is_err());
    assert!(arena.begin_beyond(usize::MAX, 1).is_err());
    assert!(!arena.is_beyond(), "nothing was mapped for that");
    assert_eq!(arena.statistics().failed_allocations, 4);
    free_bytes.store(300 << 20, Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(20));
    assert!(arena.allocate(100 * MIB).is_ok());
}

#[test]
fn what_is_announced_beyond_leaves_the_capacity_to_others() {
    let mut arena = arena(&free(900));
    let announced: Vec<BufferMut> = (0..100)
        .map(|_| arena.begin_beyond(500 * MIB, 64 << 10).unwrap())
        .collect();
    let statistics = arena.statistics();
    assert_eq!(statistics.in_use_bytes, 0);
    assert!(
        statistics.beyond_bytes <= 100 * (64 << 10),
        "no more than windows"
    );
    let honest = arena.begin_beyond(500 * MIB, 64 << 10).unwrap();
    let honest = arena.grow(honest, 500 * MIB, 500 * MIB).unwrap();
    drop((announced, honest));
}

#[test]
fn an_arena_without_headroom_has_its_capacity_and_no_more() {
    let options = ArenaOptions::default().with(|options| options.capacity_bytes = 4 * MIB);
    let mut arena = Arena::new(options).unwrap();
    let refused = [arena.allocate(5 * MIB), arena.begin_beyond(MIB, 1)];
    assert!(
        refused
            .iter()
            .all(|refused| refused.as_ref().unwrap_err().beyond.is_none())
    );
    assert!(
        arena.check_announced(5 * MIB).is_ok(),
        "it is refused where it does not fit"
    );
    assert!(!arena.is_beyond());
}

/// The system sees what arenas have filled, not what they were lent.
#[test]
fn arenas_that_grow_at_once_leave_a_part_of_the_machine_free() {
    let free_bytes = free(800);
    let ask = Arc::clone(&free_bytes);
    let headroom = Headroom::new(1 << 30, move || Some(ask.load(Ordering::Relaxed)));
    let mut arenas: Vec<Arena> = (0..4).map(|_| of(headroom.clone())).collect();
    let mut kept = Vec::new();
    loop {
        let taken = arenas.iter_mut().map(|arena| arena.allocate(MIB).ok());
        // All have taken before anyone fills.
        let taken: Vec<BufferMut> = taken.flatten().collect();
        if taken.is_empty() {
            break;
        }
        free_bytes.fetch_sub((taken.len() << 20) as u64, Ordering::Relaxed);
        kept.extend(taken);
    }
    let left_mib = (free_bytes.load(Ordering::Relaxed) >> 20) as usize;
    assert!((128..=160).contains(&(left_mib + 4 * 4)), "{left_mib}");
}

/// The longer they are, the more each has taken before they meet.
#[test]
fn of_two_that_do_not_fit_together_the_first_gets_its_memory() {
    for whole_len in [400 * MIB, 500 * MIB, 600 * MIB] {
        let free_bytes = free(800);
        let ask = Arc::clone(&free_bytes);
        let headroom = Headroom::new(1 << 30, move || Some(ask.load(Ordering::Relaxed)));
        let mut arenas = [of(headroom.clone()), of(headroom)];
        let begin = |arena: &mut Arena| Some(arena.begin_beyond(whole_len, MIB).unwrap());
        let mut memories = arenas.each_mut().map(begin);
        for len in (2 * MIB..=whole_len).step_by(MIB) {
            for (arena, memory) in arenas.iter_mut().zip(&mut memories) {
                *memory =
                    (memory.take()).and_then(|memory| arena.grow(memory, len, whole_len).ok());
            }
            let taken_bytes: u64 = arenas.iter().map(Arena::lent_bytes).sum();
            free_bytes.store((800 << 20) - taken_bytes, Ordering::Relaxed);
        }
        let has = memories.map(|memory| memory.is_some_and(|memory| memory.len() == whole_len));
        assert_eq!(has, [true, false], "of {whole_len} bytes");
    }
}

#[test]
fn the_machine_has_the_memory_back() {
    let resident_bytes = || {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = pages.split(' ').nth(1).unwrap().parse().unwrap();
        pages * 4096
    };
    let mut arena = arena(&free(900));
    let mut kept = arena.allocate(5 * MIB).unwrap();
    let mut large = arena.allocate(100 * MIB).unwrap();
    kept.fill(3);
    large.fill(5);
    let before = resident_bytes();
    std::thread::spawn(move || drop(large)).join().unwrap();
    arena.give_back();
    let with_kept = resident_bytes();
    assert!(with_kept + 90 * MIB < before, "{with_kept} {before}");
    assert!(kept.iter().all(|byte| *byte == 3));
    drop(kept);
    arena.give_back();
    assert!(resident_bytes() + 4 * MIB < with_kept);
}
