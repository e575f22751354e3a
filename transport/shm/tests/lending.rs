//! Payloads in shared arenas are received without a copy, large ones elsewhere with one, and all
//! come home.

use std::time::{Duration, Instant};

use grpcxx_memory::{Arena, Buffer};
use grpcxx_shm::ShmOptions;
use grpcxx_transport::{CloseReason, LinkId, Outcome, Park, Transport};

use crate::support::*;

fn lenders() -> (Side, LinkId, Side, LinkId, Arena) {
    let (a, near, mut b, far) = pair(&ShmOptions::default());
    b.seen.borrows = true;
    (a, near, b, far, shared_arena())
}

fn in_use(arena: &mut Arena) -> usize {
    arena.reclaim();
    arena.statistics().in_use_bytes
}

#[test]
fn payloads_of_shared_arenas_are_borrowed_and_given_back() {
    let (mut a, near, mut b, _, mut arena) = lenders();
    for round in 0..1500 {
        let len = 16384 + round * 8;
        let tensor = payload(&mut arena, len, round);
        a.send(near, &tensor);
        drop(tensor);
        both(&mut a, &mut b, "it came", |_, b| b.messages.len() == 1);
        let got = b.seen.messages.pop_front().unwrap();
        assert!(!got.is_arena() && got[..] == pattern(len, round));
        assert!(in_use(&mut arena) > 0, "lent until it is dropped");
        // The last reference may go on another thread.
        std::thread::spawn(move || drop(got)).join().unwrap();
        a.turn();
        assert_eq!(in_use(&mut arena), 0);
    }
    let (sent, got) = (a.transport.counters(), b.transport.counters());
    assert_eq!(sent.lent_bytes, got.borrowed_bytes);
    assert_eq!(got.received_bytes, 1500 * 8, "nothing but heads was copied");
}

#[test]
fn what_cannot_be_borrowed_is_copied() {
    let (mut a, near, mut b, _, mut arena) = lenders();
    // Foreign memory; memory of an arena that is not shared; less than is worth lending.
    let mut private = Arena::new(grpcxx_memory::ArenaOptions::default().with(|options| {
        options.capacity_bytes = 1 << 20;
        options.huge_pages = false;
    }))
    .unwrap();
    let tensors = [
        Buffer::from(pattern(300_000, 1)),
        payload(&mut private, 300_000, 2),
        payload(&mut arena, 16383, 3),
    ];
    for tensor in &tensors {
        a.send(near, tensor);
    }
    both(&mut a, &mut b, "they came", |_, b| b.messages.len() == 3);
    for (got, tensor) in b.seen.messages.drain(..).zip(&tensors) {
        assert_eq!(got, *tensor);
    }
    assert_eq!(b.transport.counters().borrowed_bytes, 0);
    // A landing that the receiver chose is filled, from the arena.
    b.seen.borrows = false;
    let tensor = payload(&mut arena, 5 << 20, 4);
    a.send(near, &tensor);
    both(&mut a, &mut b, "it came", |_, b| b.messages.len() == 1);
    assert_eq!(b.seen.messages[0], tensor);
    assert_eq!(a.transport.counters().lent_bytes, 5 << 20);
    drop(tensor);
    a.turn();
    assert_eq!(
        in_use(&mut arena),
        16384,
        "given back as soon as it was copied"
    );
}

#[test]
fn large_payloads_elsewhere_are_copied_once() {
    if !can_show_memory() {
        return;
    }
    let (mut a, near, mut b, _) = pair(&ShmOptions::default());
    let mut arena = private_arena();
    let mut exchange = |payload: &Buffer| {
        a.send(near, payload);
        both(&mut a, &mut b, "it came", |_, b| b.messages.len() == 1);
        assert!(b.seen.messages.pop_front().unwrap() == *payload);
        assert_eq!(
            a.transport.counters().shown_bytes,
            b.transport.counters().seen_bytes
        );
        a.transport.counters()
    };
    // The first pass through the ring, while the ends find out what they can do.
    let end = Instant::now() + PATIENCE;
    let large = payload(&mut arena, 9 << 20, 0);
    while exchange(&large).shown_bytes == 0 {
        assert!(Instant::now() < end, "this process can be read");
    }
    let before = exchange(&large);
    for _ in 1..40 {
        exchange(&large);
    }
    let counters = exchange(&large);
    assert_eq!(
        counters.copied_bytes - before.copied_bytes,
        40 * 8,
        "heads alone"
    );
    let small = exchange(&payload(&mut arena, (4 << 20) - 1, 1));
    assert_eq!(small.shown_bytes, counters.shown_bytes);
    a.turn();
    assert!(large.try_into_mut().is_ok(), "nobody holds it any more");
}

/// Two sides that know that they can read each other, and a payload that is worth it.
fn seers() -> Option<(Side, LinkId, Side, LinkId, Buffer)> {
    if !can_show_memory() {
        return None;
    }
    let (mut a, near, mut b, far) = pair(&ShmOptions::default());
    let large = payload(&mut private_arena(), 9 << 20, 3);
    let end = Instant::now() + PATIENCE;
    while a.transport.counters().shown_bytes == 0 || b.transport.counters().shown_bytes == 0 {
        assert!(Instant::now() < end, "this process can be read");
        a.send(near, &large);
        b.send(far, &large);
        both(&mut a, &mut b, "they came", |a, b| {
            a.messages.pop_front().is_some() | b.messages.pop_front().is_some()
                && a.sent.len() == b.sent.len()
        });
    }
    for _ in 0..100 {
        both(&mut a, &mut b, "all is read", |_, _| true);
        a.turn();
        b.turn();
    }
    a.seen = Seen::default();
    b.seen = Seen::default();
    Some((a, near, b, far, large))
}

#[test]
fn a_frame_has_left_once_it_was_read() {
    let Some((mut a, near, mut b, _, large)) = seers() else {
        return;
    };
    a.send(near, &large);
    a.send(near, &Buffer::from(vec![1; 8]));
    for _ in 0..100 {
        a.turn();
    }
    assert!(a.seen.sent.is_empty(), "they leave in order");
    a.until("it sleeps", |a| a.transport.park_fd().is_some());
    let wakes = b.transport.counters().wakes;
    b.until("they came", |b| b.seen.messages.len() == 2);
    assert_eq!(b.transport.counters().wakes, wakes + 1);
    a.transport.unpark();
    a.turn();
    assert_eq!(a.seen.sent, [Outcome::Done; 2]);
    assert!(large.try_into_mut().is_ok(), "the loan is over");
}

#[test]
fn a_frame_that_was_not_read_is_lost_with_its_link() {
    let Some((mut a, near, b, _, large)) = seers() else {
        return;
    };
    a.send(near, &large);
    a.turn();
    drop(b);
    a.until("it closed", |a| !a.seen.closed.is_empty());
    assert_eq!(a.seen.sent, [Outcome::Lost]);
    assert!(large.try_into_mut().is_ok(), "nobody can read it any more");
}

/// A peer reads what is in its ring before it looks whether the link has ended. Was it told as
/// lost, a tensor would have two receivers.
#[test]
fn a_frame_that_may_be_read_is_not_lost_with_its_link() {
    let Some((mut a, near, mut b, _, large)) = seers() else {
        return;
    };
    a.send(near, &large);
    a.turn();
    a.transport.close(near, false);
    a.until("it closed", |a| !a.seen.closed.is_empty());
    b.until("it closed", |b| !b.seen.closed.is_empty());
    assert_eq!(b.seen.messages.len(), 1);
    assert!(b.seen.messages[0] == large);
    assert_eq!(a.seen.sent, [Outcome::Done]);
}

#[test]
fn two_ends_that_close_do_not_wait_for_each_other() {
    let Some((mut a, near, mut b, far, large)) = seers() else {
        return;
    };
    a.send(near, &large);
    b.send(far, &large);
    a.transport.close(near, true);
    b.transport.close(far, true);
    let start = Instant::now();
    both(&mut a, &mut b, "both closed", |a, b| {
        a.closed.len() + b.closed.len() == 2
    });
    let took = start.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?}");
    a.until("the loans are over", |_| {
        b.turn();
        large.is_unique()
    });
}

#[test]
fn what_is_shown_before_a_flush_arrives() {
    let Some((mut a, near, mut b, _, large)) = seers() else {
        return;
    };
    for _ in 0..5 {
        a.send(near, &large);
    }
    a.transport.close(near, true);
    both(&mut a, &mut b, "both closed", |a, b| {
        a.closed.len() + b.closed.len() == 2
    });
    assert_eq!(b.seen.closed[0], CloseReason::EndOfStream);
    assert_eq!(a.seen.sent, [Outcome::Done; 5]);
    assert_eq!(b.seen.messages.len(), 5);
    assert!(b.seen.messages.iter().all(|got| *got == large));
}

#[test]
fn memory_is_not_shown_to_who_does_not_look() {
    let blind = ShmOptions::default().with(|options| options.show_bytes_min = usize::MAX);
    let (mut a, mut b) = (Side::new(ShmOptions::default()), Side::new(blind));
    let near = a.dial(b.listen());
    b.accept();
    let mut arena = private_arena();
    for round in 0..3 {
        a.send(near, &payload(&mut arena, 8 << 20, round));
    }
    both(&mut a, &mut b, "they came", |_, b| b.messages.len() == 3);
    assert_eq!(a.transport.counters().shown_bytes, 0);
    for (round, got) in b.seen.messages.iter().enumerate() {
        assert_eq!(got[..], pattern(8 << 20, round));
    }
}

#[test]
fn no_more_is_lent_than_allowed() {
    let options = ShmOptions::default().with(|options| options.lent_bytes_max = 100_000);
    let (mut a, near, mut b, _) = pair(&options);
    b.seen.borrows = true;
    let mut arena = shared_arena();
    for round in 0..10 {
        a.send(near, &payload(&mut arena, 40_000, round));
    }
    both(&mut a, &mut b, "they came", |_, b| b.messages.len() == 10);
    assert_eq!(a.transport.counters().lent_bytes, 80_000);
    for (round, got) in b.seen.messages.iter().enumerate() {
        assert_eq!(got[..], pattern(40_000, round));
    }
    // More loans than slots.
    let (mut a, near, mut b, _) = pair(&ShmOptions::default());
    b.seen.borrows = true;
    for round in 0..700 {
        a.send(near, &payload(&mut arena, 20_000, round));
    }
    both(&mut a, &mut b, "they came", |_, b| b.messages.len() == 700);
    assert_eq!(a.transport.counters().lent_bytes, 512 * 20_000);
    for (round, got) in b.seen.messages.iter().enumerate() {
        assert_eq!(got[..], pattern(20_000, round));
    }
}

/// Lets one of two sides close their link, and waits until both know.
fn close((a, near): (&mut Side, LinkId), (b, far): (&mut Side, LinkId), closes_first: usize) {
    if closes_first == 0 {
        a.transport.close(near, false);
    } else {
        b.transport.close(far, false);
    }
    both(a, b, "it closed", |a, b| {
        a.closed.len() + b.closed.len() == 2
    });
}

#[test]
fn loans_outlast_the_link() {
    for closes_first in [0, 1] {
        let (mut a, near, mut b, far, mut arena) = lenders();
        // Together a good part of the arena, which nobody copies.
        for round in 0..2 {
            a.send(near, &payload(&mut arena, 10 << 20, round));
        }
        both(&mut a, &mut b, "they came", |_, b| b.messages.len() == 2);
        close((&mut a, near), (&mut b, far), closes_first);
        let reasons = [&a.seen.closed[0], &b.seen.closed[0]];
        assert_eq!(*reasons[closes_first], CloseReason::Local);
        assert_eq!(*reasons[1 - closes_first], CloseReason::EndOfStream);
        for _ in 0..1000 {
            a.turn();
        }
        // Nobody else gets the memory while somebody reads it.
        let others: Vec<_> = std::iter::from_fn(|| arena.allocate(1 << 20).ok()).collect();
        assert!(others.len() < 64);
        drop(others);
        for round in 0..2 {
            let got = b.seen.messages.pop_front().unwrap();
            assert!(got[..] == pattern(10 << 20, round));
            assert!(in_use(&mut arena) > 0);
        }
        a.until("the loans come home", |_| in_use(&mut arena) == 0);
    }
}

/// What is left of a link is copied where it is little, so that its lender has its memory back.
#[test]
fn small_loans_end_with_the_link() {
    for closes_first in [0, 1] {
        let (mut a, near, mut b, far, mut arena) = lenders();
        a.send(near, &payload(&mut arena, 100_000, 1));
        both(&mut a, &mut b, "it came", |_, b| b.messages.len() == 1);
        assert!(b.seen.messages[0].is_borrowed());
        close((&mut a, near), (&mut b, far), closes_first);
        a.until("the loan comes home", |_| in_use(&mut arena) == 0);
        let others: Vec<_> = std::iter::from_fn(|| {
            let mut memory = arena.allocate(1 << 20).ok()?;
            memory.fill(0xff);
            Some(memory)
        })
        .collect();
        assert_eq!(others.len(), 64);
        assert_eq!(b.seen.messages[0][..], pattern(100_000, 1));
    }
}

#[test]
fn a_transport_that_goes_leaves_its_loans_alone() {
    let (mut a, near, mut b, _, mut arena) = lenders();
    a.send(near, &payload(&mut arena, 100_000, 7));
    both(&mut a, &mut b, "it came", |_, b| b.messages.len() == 1);
    drop(a);
    let others: Vec<_> = std::iter::from_fn(|| {
        let mut memory = arena.allocate(100_000).ok()?;
        memory.fill(0xff);
        Some(memory)
    })
    .collect();
    assert!(!others.is_empty());
    b.until("the peer is gone", |b| !b.seen.closed.is_empty());
    assert_eq!(b.seen.messages[0][..], pattern(100_000, 7));
}
