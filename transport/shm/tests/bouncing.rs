//! Payloads that lie elsewhere cross with one copy where the receiver takes lent memory, and as
//! before where it does not.

use std::collections::VecDeque;

use grpcxx_memory::{Arena, ArenaOptions, Buffer};
use grpcxx_shm::{RING_BYTES_MIN, ShmCounters, ShmOptions};
use grpcxx_transport::{LinkId, Outcome, Park, Transport};

use crate::support::*;

fn with_arena(bounce_arena_bytes: usize) -> ShmOptions {
    ShmOptions::default().with(|options| {
        options.bounce_arena_bytes = bounce_arena_bytes;
        // Whether this machine has huge pages makes no difference.
        options.show_bytes_min = usize::MAX;
    })
}

fn heap(len: usize, seed: usize) -> Buffer {
    Buffer::from(pattern(len, seed))
}

/// Two sides of which the second takes lent memory, and the first knows it.
fn takers(options: &ShmOptions) -> (Side, LinkId, Side, LinkId) {
    let (mut a, near, mut b, far) = pair(options);
    b.seen.borrows = true;
    exchange(&mut a, near, &mut b, &heap(16 << 10, 0));
    a.seen.sent.clear();
    (a, near, b, far)
}

/// Sends a payload, checks that it comes, and says what the sender has done for it.
fn exchange(a: &mut Side, near: LinkId, b: &mut Side, payload: &Buffer) -> ShmCounters {
    let before = a.transport.counters();
    a.send(near, payload);
    both(a, b, "it came", |_, b| !b.messages.is_empty());
    assert!(b.seen.messages.pop_front().unwrap() == *payload);
    let after = a.transport.counters();
    ShmCounters {
        copied_bytes: after.copied_bytes - before.copied_bytes,
        lent_bytes: after.lent_bytes - before.lent_bytes,
        bounced_bytes: after.bounced_bytes - before.bounced_bytes,
        ..ShmCounters::default()
    }
}

#[test]
fn a_tensor_of_the_heap_crosses_with_one_copy() {
    let (mut a, near, mut b, _) = takers(&with_arena(64 << 20));
    for (round, len) in [16 << 10, 1 << 20, (5 << 20) + 3].into_iter().enumerate() {
        let before = b.transport.counters();
        let tensor = heap(len, round);
        let done = exchange(&mut a, near, &mut b, &tensor);
        let expected = ShmCounters {
            copied_bytes: 8,
            lent_bytes: len as u64,
            bounced_bytes: len as u64,
            ..ShmCounters::default()
        };
        assert_eq!(done, expected, "the head alone passed the ring");
        let after = b.transport.counters();
        assert_eq!(after.borrowed_bytes - before.borrowed_bytes, len as u64);
        assert_eq!(after.received_bytes - before.received_bytes, 8);
    }
    let small = exchange(&mut a, near, &mut b, &heap((16 << 10) - 1, 9));
    assert_eq!(small.bounced_bytes, 0, "the ring is as fast");
}

/// Once it is copied, the sender has its memory back, whatever the receiver does.
#[test]
fn a_frame_has_left_once_it_was_copied() {
    let (mut a, near, mut b, _) = takers(&with_arena(64 << 20));
    let tensor = heap(3 << 20, 1);
    a.send(near, &tensor);
    a.until("it has left", |a| a.seen.sent == [Outcome::Done]);
    assert!(tensor.is_unique());
    drop(tensor);
    b.until("it came", |b| b.seen.messages.len() == 1);
    assert_eq!(b.seen.messages[0][..], pattern(3 << 20, 1));
}

/// What is full passes the ring, in order, and what comes home is used again.
#[test]
fn what_finds_no_place_passes_the_ring() {
    let (mut a, near, mut b, _) = takers(&with_arena(1 << 20));
    let tensors: Vec<Buffer> = (0..8).map(|round| heap(300_000, round)).collect();
    for round in 0..3 {
        let before = a.transport.counters().bounced_bytes;
        for tensor in &tensors {
            a.send(near, tensor);
        }
        both(&mut a, &mut b, "they came", |_, b| b.messages.len() == 8);
        assert!(b.seen.messages.iter().eq(&tensors), "in order");
        let bounced = a.transport.counters().bounced_bytes - before;
        let count = bounced / 300_000;
        assert!((1..4).contains(&count), "round {round}: {count}");
        b.seen.messages.clear();
    }
    // More than there ever is room for.
    let long = exchange(&mut a, near, &mut b, &heap((1 << 20) + 1, 1));
    assert_eq!(long.bounced_bytes, 0);
    let none = with_arena(0);
    let (mut a, near, mut b, _) = takers(&none);
    assert_eq!(
        exchange(&mut a, near, &mut b, &heap(1 << 20, 1)).lent_bytes,
        0
    );
}

/// Whoever has memory of its own for what comes gets it through the ring, and may change its mind
/// at any time.
#[test]
fn who_does_not_take_it_is_not_lent_copies() {
    let (mut a, near, mut b, _) = pair(&with_arena(64 << 20));
    for (round, borrows) in [false, false, true, true, false, false]
        .into_iter()
        .enumerate()
    {
        b.seen.borrows = borrows;
        let first = exchange(&mut a, near, &mut b, &heap(1 << 20, round));
        let second = exchange(&mut a, near, &mut b, &heap(1 << 20, round));
        assert_eq!(second.bounced_bytes > 0, borrows, "{round}: {first:?}");
    }
    assert!(b.transport.counters().received_bytes > 0);
}

/// A link that ends in the middle of a copy gives the payload and the memory back.
#[test]
fn a_link_that_dies_in_the_middle_gives_everything_back() {
    let options = with_arena(32 << 20);
    let (mut a, near, b, _) = takers(&options);
    let address = a.listen();
    let mut c = Side::new(options);
    c.seen.borrows = true;
    c.dial(address);
    let other = a.accept();
    exchange(&mut a, other, &mut c, &heap(16 << 10, 0));
    a.seen.sent.clear();
    let tensor = heap(32 << 20, 1);
    a.send(near, &tensor);
    for _ in 0..5 {
        a.turn();
    }
    assert!(a.seen.sent.is_empty(), "the copy takes more turns");
    let before = a.transport.counters().bounced_bytes;
    drop(b);
    a.until("it closed", |a| !a.seen.closed.is_empty());
    assert_eq!(a.seen.sent, [Outcome::Lost], "given back once");
    assert!(tensor.is_unique());
    assert_eq!(a.transport.counters().bounced_bytes, before);
    let whole = exchange(&mut a, other, &mut c, &heap(32 << 20, 2));
    assert_eq!(whole.bounced_bytes, 32 << 20, "all of it can be had again");
}

#[test]
fn who_sleeps_is_woken_while_the_last_part_is_copied() {
    let (mut a, near, mut b, _) = takers(&with_arena(64 << 20));
    b.until("it sleeps", |b| b.transport.park_fd().is_some());
    a.send(near, &heap(40 << 20, 1));
    // Woken for the head, it has nothing to do until the rest is near.
    b.transport.unpark();
    b.turn();
    assert!(b.transport.park_fd().is_some(), "it is not soon");
    let wakes = a.transport.counters().wakes;
    a.until("it is soon", |a| a.transport.counters().wakes > wakes);
    assert!(a.seen.sent.is_empty(), "it is not there yet");
    b.transport.unpark();
    b.turn();
    assert!(b.transport.park_fd().is_none(), "it waits awake");
    // Not for ever.
    b.until("it sleeps", |b| b.transport.park_fd().is_some());
    b.transport.unpark();
    both(&mut a, &mut b, "it came", |_, b| b.messages.len() == 1);
}

#[test]
fn who_waits_for_a_flush_sleeps_no_longer_than_it_may_take() {
    let (mut a, near, _b, _) = takers(&with_arena(4 << 20));
    assert_eq!(a.transport.patience(), None);
    a.send(near, &heap(40 << 20, 1));
    a.turn();
    a.transport.close(near, true);
    a.until("it sleeps", |a| {
        let sleeps = a.transport.park_fd().is_some();
        assert!(a.seen.closed.is_empty(), "it waits for a reader");
        sleeps
    });
    assert!(a.transport.patience().is_some());
    a.transport.unpark();
}

/// Payloads of all lengths and kinds, with little room, slow readers and links that end: all that
/// comes is as it was sent and in order, and nothing is kept.
#[test]
fn any_mix_arrives_in_order() {
    let seed =
        std::env::var("GRPCXX_SEED").map_or_else(|_| fastrand::u64(..), |s| s.parse().unwrap());
    for round in 0..30 {
        let name = format!("GRPCXX_SEED={seed}, round {round}");
        let mut random = fastrand::Rng::with_seed(seed ^ round);
        let options = with_arena(random.usize(1..8) << 19).with(|options| {
            options.ring_bytes = RING_BYTES_MIN << random.u8(..4);
            options.lent_bytes_max = if random.bool() { 1 << 20 } else { 1 << 30 };
        });
        let (mut a, near, mut b, _) = pair(&options);
        let mut arena = shared_arena();
        let (mut sent, mut kept) = (VecDeque::new(), Vec::new());
        let mut count = 0;
        while count < 200 || !sent.is_empty() {
            b.seen.borrows = random.u8(..8) > 0;
            if count < 200 && sent.len() < 50 {
                let len = match random.u8(..4) {
                    0 => random.usize(..100),
                    1 => random.usize(..20_000),
                    2 => random.usize(..200_000),
                    _ => random.usize(..1_500_000),
                };
                let tensor = match random.bool() {
                    true => heap(len, count),
                    false => payload(&mut arena, len, count),
                };
                a.send(near, &tensor);
                sent.push_back((len, count));
                count += 1;
            }
            for _ in 0..random.usize(..4) {
                a.turn();
            }
            for _ in 0..random.usize(..4) {
                b.turn();
            }
            while let Some(got) = b.seen.messages.pop_front() {
                let (len, seed) = sent.pop_front().expect("no more came than was sent");
                assert!(got[..] == pattern(len, seed), "{name}, message {seed}");
                if random.u8(..3) == 0 {
                    kept.push((got, len, seed));
                }
            }
            if random.u8(..16) == 0 {
                kept.clear();
            }
        }
        let bounced = a.transport.counters().bounced_bytes;
        assert!(bounced > 0, "{name}");
        drop(a);
        for (got, len, seed) in kept {
            assert!(got[..] == pattern(len, seed), "{name}: kept");
        }
    }
}

/// However many arenas payloads are lent of, those that lie elsewhere have a place too.
#[test]
fn copies_are_lent_beside_any_number_of_arenas() {
    let (mut a, near, mut b, _) = pair(&with_arena(8 << 20));
    b.seen.borrows = true;
    for round in 0..70 {
        let mut arena = Arena::new(ArenaOptions::default().with(|options| {
            options.capacity_bytes = 1 << 20;
            options.huge_pages = false;
            options.shared = true;
        }))
        .unwrap();
        exchange(&mut a, near, &mut b, &payload(&mut arena, 20_000, round));
    }
    let elsewhere = exchange(&mut a, near, &mut b, &heap(20_000, 1));
    assert_eq!(elsewhere.bounced_bytes, 20_000);
}
