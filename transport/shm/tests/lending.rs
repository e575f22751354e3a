//! Payloads in shared arenas are received without a copy, and come home.

mod support;

use grpcxx_memory::{Arena, Buffer};
use grpcxx_shm::ShmOptions;
use grpcxx_transport::{CloseReason, Transport};
use support::*;

fn lenders() -> (
    Side,
    grpcxx_transport::LinkId,
    Side,
    grpcxx_transport::LinkId,
    Arena,
) {
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
    let mut private = Arena::new(grpcxx_memory::ArenaOptions {
        capacity_bytes: 1 << 20,
        huge_pages: false,
        shared: false,
    })
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
fn no_more_is_lent_than_allowed() {
    let options = ShmOptions {
        lent_bytes_max: 100_000,
        ..ShmOptions::default()
    };
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

#[test]
fn loans_outlast_the_link() {
    for closes_first in [0, 1] {
        let (mut a, near, mut b, far, mut arena) = lenders();
        for round in 0..2 {
            a.send(near, &payload(&mut arena, 100_000, round));
        }
        both(&mut a, &mut b, "they came", |_, b| b.messages.len() == 2);
        if closes_first == 0 {
            a.transport.close(near, false);
        } else {
            b.transport.close(far, false);
        }
        both(&mut a, &mut b, "it closed", |a, b| {
            a.closed.len() + b.closed.len() == 2
        });
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
            assert_eq!(got[..], pattern(100_000, round));
            assert!(in_use(&mut arena) > 0);
        }
        a.until("the loans come home", |_| in_use(&mut arena) == 0);
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
