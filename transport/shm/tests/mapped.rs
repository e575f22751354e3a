//! Memory of peers takes no more address space than allowed. One test, so that no other link of
//! this process counts.

use std::os::fd::AsFd;

use grpcxx_shm::{RING_BYTES_MIN, ShmOptions, mapped_bytes};

use crate::support::hostile::{Peer, sealed_memory};
use crate::support::*;

#[test]
fn memory_of_peers_is_bounded_in_sum() {
    let options = ShmOptions::default().with(|options| {
        options.ring_bytes = RING_BYTES_MIN;
        options.mapped_bytes_max = 1 << 20;
    });
    let mut side = Side::new(options.clone());
    let address = side.listen();
    let segment_bytes = 4096 + 2 * RING_BYTES_MIN as u64;
    // Peers that bring as much as they may.
    let peers: Vec<Peer> = (0..40).map(|_| Peer::dial(address)).collect();
    for peer in &peers {
        peer.hello(RING_BYTES_MIN as u64, Some(peer.segment.as_fd()));
        side.turn();
    }
    side.until("all have their answer", |side| {
        side.seen.accepted.len() as u64 + side.transport.counters().refused == 40
    });
    assert_eq!(side.seen.accepted.len() as u64, (1 << 20) / segment_bytes);
    assert_eq!(mapped_bytes(), (1 << 20) / segment_bytes * segment_bytes);
    drop(side);
    assert_eq!(mapped_bytes(), 0);

    // An arena without room is read where it lies.
    let (mut a, near, mut b, _) = pair(&options);
    b.seen.borrows = true;
    let mut arena = shared_arena();
    for round in 0..5 {
        a.send(near, &payload(&mut arena, 300_000, round));
        both(&mut a, &mut b, "it came", |_, b| b.messages.len() == 1);
        let got = b.seen.messages.pop_front().unwrap();
        assert!(!got.is_borrowed() && got[..] == pattern(300_000, round));
    }
    assert_eq!(a.transport.counters().lent_bytes, 5 * 300_000);
    assert_eq!(b.transport.counters().borrowed_bytes, 0);
    assert_eq!(mapped_bytes(), segment_bytes);
    a.turn();
    arena.reclaim();
    assert_eq!(arena.statistics().in_use_bytes, 0, "the loans are over");
    drop((a, b));

    // Nor does a peer have more descriptors kept than that.
    let mut side = Side::new(options);
    let peer = Peer::dial(side.listen());
    peer.hello(RING_BYTES_MIN as u64, Some(peer.segment.as_fd()));
    side.accept();
    let arena = sealed_memory(2 << 20);
    for _ in 0..17 {
        assert!(side.seen.closed.is_empty());
        peer.say(&[6], Some(arena.as_fd()));
    }
    side.until("the link fails", |side| !side.seen.closed.is_empty());
}
