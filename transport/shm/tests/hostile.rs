//! A peer that writes garbage, or dies at any point, can neither crash nor hang a link
//! (checklist 18).

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use grpcxx_shm::{RING_BYTES_MIN, ShmOptions};
use grpcxx_transport::{CloseReason, Transport};

use crate::support;
use crate::support::dialled::{DIALLED_RING, DIALLED_TAIL};
use crate::support::hostile::{
    self, ENDED, HEAD_OF_THE_OTHER_LANE, MARK, Peer, RING, TAIL, sealed_memory,
    sealed_memory_called, shown,
};
use crate::support::{HEAD, Side};

/// A victim with a link to a hostile peer.
fn victim() -> (Side, grpcxx_transport::LinkId, Peer) {
    let mut side =
        Side::new(ShmOptions::default().with(|options| options.ring_bytes = RING_BYTES_MIN));
    let address = side.listen();
    let peer = Peer::dial(address);
    peer.hello(RING_BYTES_MIN as u64, Some(peer.segment.as_fd()));
    let link = side.accept();
    (side, link, peer)
}

/// What the link says of garbage.
fn complaint(mut side: Side) -> String {
    side.until("the link fails", |side| !side.seen.closed.is_empty());
    match &side.seen.closed[0] {
        CloseReason::Failed(error) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn indices_that_cannot_be_end_the_link() {
    for (at, value, expected) in [
        (TAIL, u64::MAX, "bytes written"),
        (TAIL, RING_BYTES_MIN as u64 + 8, "bytes written"),
        (TAIL, 4, "incomplete record"),
        (TAIL, 8, "kind and length of a record"),
        (HEAD_OF_THE_OTHER_LANE, 1 << 40, "bytes read"),
        (HEAD_OF_THE_OTHER_LANE, u64::MAX, "bytes read"),
    ] {
        let (mut side, link, peer) = victim();
        peer.write(at, &value.to_le_bytes());
        // Enough to fill the ring, so that the other end's progress matters.
        for _ in 0..40 {
            let mut frame = Box::<grpcxx_transport::Frame>::default();
            frame.bytes_mut().resize(1000, 1);
            let _ = side.transport.send(link, frame);
        }
        let complaint = complaint(side);
        assert!(complaint.contains(expected), "{value:#x}: {complaint}");
    }
}

fn record(kind: u64, len: u64) -> Vec<u8> {
    (kind << 32 | len).to_le_bytes().to_vec()
}

fn lent(arena: u32, slot: u32, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = record(2, 24);
    bytes.extend_from_slice(&arena.to_le_bytes());
    bytes.extend_from_slice(&slot.to_le_bytes());
    bytes.extend_from_slice(&offset.to_le_bytes());
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes
}

/// A message of so many bytes that lie in an arena.
fn lent_message(slot: u32, offset: u64, len: u64) -> Vec<u8> {
    let head = [record(1, 8), len.to_le_bytes().to_vec()].concat();
    [head, lent(0, slot, offset, len)].concat()
}

/// A victim that has dialled a hostile peer and borrows what that lends.
fn dialler() -> (Side, Peer) {
    let mut side =
        Side::new(ShmOptions::default().with(|options| options.ring_bytes = RING_BYTES_MIN));
    side.seen.borrows = true;
    let (listener, address) = Peer::listen();
    side.dial(address);
    (side, Peer::answer(&listener))
}

#[test]
fn a_slot_cannot_be_lent_twice() {
    let (mut side, peer) = dialler();
    peer.say(&[6], Some(sealed_memory(1 << 20).as_fd()));
    let bytes = [lent_message(3, 0, 16384), lent_message(3, 32768, 16384)].concat();
    peer.write(DIALLED_RING, &bytes);
    peer.write(DIALLED_TAIL, &(bytes.len() as u64).to_le_bytes());
    side.until("the first is taken", |side| side.seen.messages.len() == 1);
    assert!(side.seen.messages[0].is_borrowed());
    let complaint = complaint(side);
    assert!(
        complaint.contains("a slot has a loan already"),
        "{complaint}"
    );
}

/// What came does not change afterwards, whatever its sender does.
#[test]
fn a_peer_that_has_dialled_cannot_change_what_it_has_sent() {
    let (mut side, _, peer) = victim();
    side.seen.borrows = true;
    let arena = sealed_memory_called("changing", 1 << 20);
    peer.say(&[6], Some(arena.as_fd()));
    let bytes = lent_message(3, 4096, 100_000);
    peer.write(RING, &bytes);
    peer.write(TAIL, &(bytes.len() as u64).to_le_bytes());
    side.until("it came", |side| side.seen.messages.len() == 1);
    let before = side.seen.messages[0].to_vec();
    arena.write_at(&[0xee; 200_000], 0).unwrap();
    assert!(
        side.seen.messages[0][..] == before[..],
        "a tensor has changed without a call"
    );
    assert!(!side.seen.messages[0].is_borrowed());
    // Nor does it keep the mapping of all that its sender has.
    drop((peer, arena));
    side.until("the end is noticed", |side| !side.seen.closed.is_empty());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("memfd:changing"), "{maps}");
}

/// A tensor that outlives its lender keeps no more than itself.
#[test]
fn a_small_part_does_not_keep_the_memory_of_a_peer_that_has_ended() {
    for (len, is_kept) in [(100_000, false), (20 << 20, true)] {
        let (mut side, peer) = dialler();
        let name = format!("pinned-{len}");
        let arena = sealed_memory_called(&name, 64 << 20);
        let pattern = support::pattern(len, 1);
        arena.write_at(&pattern, 5000).unwrap();
        peer.say(&[6], Some(arena.as_fd()));
        let bytes = lent_message(3, 5000, len as u64);
        peer.write(DIALLED_RING, &bytes);
        peer.write(DIALLED_TAIL, &(bytes.len() as u64).to_le_bytes());
        side.until("it came", |side| side.seen.messages.len() == 1);
        let is_mapped = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.contains(&format!("memfd:{name}"))
        };
        assert!(side.seen.messages[0].is_borrowed() && is_mapped());
        drop((peer, arena));
        side.until("the end is noticed", |side| !side.seen.closed.is_empty());
        assert_eq!(is_mapped(), is_kept, "{len} of 64 MiB");
        assert_eq!(side.seen.messages[0][..], pattern);
        drop(side);
        assert!(!is_mapped());
    }
}

/// What is short would keep all of its lender's memory for little.
#[test]
fn short_loans_are_copied() {
    let (mut side, peer) = dialler();
    peer.say(&[6], Some(sealed_memory(1 << 20).as_fd()));
    let bytes = lent_message(3, 0, 16383);
    peer.write(DIALLED_RING, &bytes);
    peer.write(DIALLED_TAIL, &(bytes.len() as u64).to_le_bytes());
    side.until("it came", |side| side.seen.messages.len() == 1);
    assert!(!side.seen.messages[0].is_borrowed());
}

#[test]
fn records_and_loans_that_cannot_be_end_the_link() {
    for (bytes, expected) in [
        (record(1, 0), "must not be empty"),
        (record(1, 8), "length of a record"),
        (record(4, 0), "kind and length"),
        (record(3, 16), "kind and length"),
        (shown(0, MARK.as_ptr().addr() as u64, 8), "cannot be seen"),
        (lent(1, 0, 0, 8), "arena"),
        (lent(0, 512, 0, 8), "slot of a loan"),
        (lent(0, 0, 8193, 8), "offset of a loan"),
        (lent(0, 0, 8192, 1), "length of a loan"),
        (lent(0, 0, 1, u64::MAX), "length of a loan"),
        (lent(0, 0, 0, 0), "no bytes"),
    ] {
        let (side, _, peer) = victim();
        peer.say(&[6], Some(sealed_memory(8192).as_fd()));
        peer.write(RING, &bytes);
        peer.write(TAIL, &(bytes.len() as u64).to_le_bytes());
        let complaint = complaint(side);
        assert!(complaint.contains(expected), "{bytes:?}: {complaint}");
    }
}

#[test]
fn memory_that_cannot_be_read_ends_the_link() {
    let there = MARK.as_ptr().addr() as u64;
    for (bytes, expected) in [
        (shown(512, there, 8), "slot of a loan"),
        (shown(0, u64::MAX, 8), "address of a payload"),
        (shown(0, there, u64::MAX), "length of a payload"),
        (shown(0, there, 0), "cannot be seen"),
        (shown(0, 8, 8), "read the memory of the peer's process"),
    ] {
        let (side, _, peer) = victim();
        peer.be_seen();
        peer.write(RING, &bytes);
        peer.write(TAIL, &(bytes.len() as u64).to_le_bytes());
        let complaint = complaint(side);
        assert!(complaint.contains(expected), "{bytes:?}: {complaint}");
    }
}

#[test]
fn a_process_that_showed_what_cannot_be_read_is_not_read_again() {
    let mut side =
        Side::new(ShmOptions::default().with(|options| options.ring_bytes = RING_BYTES_MIN));
    let address = side.listen();
    for (shown, expected) in [
        (shown(0, 8, 8), "read the memory of the peer's process"),
        (shown(0, MARK.as_ptr().addr() as u64, 8), "cannot be seen"),
    ] {
        let peer = Peer::dial(address);
        peer.hello(RING_BYTES_MIN as u64, Some(peer.segment.as_fd()));
        side.accept();
        peer.be_seen();
        peer.write(RING, &shown);
        peer.write(TAIL, &(shown.len() as u64).to_le_bytes());
        side.until("the link fails", |side| !side.seen.closed.is_empty());
        let CloseReason::Failed(error) = side.seen.closed.remove(0) else {
            panic!("it has failed");
        };
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn messages_that_cannot_be_end_the_link() {
    let shrinkable = std::fs::File::open("/proc/self/exe").unwrap();
    for (bytes, descriptor) in [
        (&[0][..], None),
        (&[99, 1, 2], None),
        (&[2], None),
        (&[6], None),
        (&[6], Some(shrinkable.as_fd())),
        (&[7, 1], None),
        (&[8, 1], None),
        (&[8], None),
    ] {
        let (side, _, peer) = victim();
        peer.say(bytes, descriptor);
        complaint(side);
    }
}

#[test]
fn memory_that_could_vanish_is_not_taken() {
    let mut side = Side::new(ShmOptions::default());
    let address = side.listen();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let attempts = [
        (RING_BYTES_MIN as u64, None),
        (RING_BYTES_MIN as u64, Some(file.as_fd())),
        (RING_BYTES_MIN as u64 * 2, None),
        (u64::MAX, None),
        (12_345, None),
        (0, None),
    ];
    let mut peers = Vec::new();
    for (ring_bytes, descriptor) in attempts {
        let peer = Peer::dial(address);
        let own = peer.segment.as_fd();
        let is_plain = ring_bytes == RING_BYTES_MIN as u64;
        peer.hello(ring_bytes, if is_plain { descriptor } else { Some(own) });
        peers.push(peer);
    }
    side.until("all are turned away", |side| {
        side.transport.counters().refused == 6
    });
    assert!(side.seen.accepted.is_empty());
}

#[test]
fn a_peer_that_dies_is_noticed_behind_its_last_byte() {
    for farewell in [0u8, 1, 2] {
        let (mut side, _, peer) = victim();
        let mut record = (1u64 << 32 | 8).to_le_bytes().to_vec();
        record.extend_from_slice(&0u64.to_le_bytes());
        peer.write(RING, &record);
        peer.write(TAIL, &16u64.to_le_bytes());
        peer.write(ENDED, &[farewell]);
        drop(peer);
        side.until("the link is closed", |side| !side.seen.closed.is_empty());
        assert_eq!(side.seen.messages.len(), 1);
        let is_whole = side.seen.closed[0] == CloseReason::EndOfStream;
        assert_eq!(is_whole, farewell == 1, "{:?}", side.seen.closed);
    }
}

/// The kernel tells once of what a socket has to say, however much that is.
#[test]
fn a_peer_that_dies_behind_many_messages_is_noticed() {
    let (mut side, _, peer) = victim();
    for _ in 0..200 {
        peer.say(&[5], None);
    }
    drop(peer);
    side.until("the link is closed", |side| !side.seen.closed.is_empty());
}

#[test]
fn all_are_let_in_that_come_at_once() {
    let mut side = Side::new(ShmOptions::default());
    let address = side.listen();
    let peers: Vec<Peer> = (0..100)
        .map(|_| {
            let peer = Peer::dial(address);
            peer.hello(RING_BYTES_MIN as u64, Some(peer.segment.as_fd()));
            peer
        })
        .collect();
    side.until("all have come", |side| {
        side.seen.accepted.len() == peers.len()
    });
}

#[test]
fn silence_at_the_door_keeps_nobody_out() {
    let mut side = Side::new(ShmOptions::default());
    let address = side.listen();
    let silent: Vec<Peer> = (0..100)
        .map(|_| {
            side.turn();
            Peer::dial(address)
        })
        .collect();
    let mut other = Side::new(ShmOptions::default());
    let link = other.transport.connect(address).unwrap();
    side.accept();
    drop(silent);
    other.until("connected", |other| other.seen.connected == [link]);
    let _ = HEAD;
}

#[test]
fn who_has_said_what_it_wants_does_not_give_way() {
    let mut side = Side::new(ShmOptions::default().with(|options| options.silent_max = 2));
    let address = side.listen();
    // All of them have sent their memory before the first one is looked at.
    let mut others: Vec<Side> = (0..10).map(|_| Side::new(ShmOptions::default())).collect();
    for other in &mut others {
        other.transport.connect(address).unwrap();
    }
    for _ in 0..others.len() {
        side.accept();
    }
}

/// Random scripts; the seed is printed by a failure and taken from `GRPCXX_SEED`.
#[test]
fn any_script_of_a_peer_ends_as_every_link_does() {
    let seed =
        std::env::var("GRPCXX_SEED").map_or_else(|_| fastrand::u64(..), |s| s.parse().unwrap());
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..300 {
        let len = random.usize(..400);
        let script: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(len).collect();
        let outcome = std::panic::catch_unwind(|| hostile::peer(&script));
        assert!(
            outcome.is_ok(),
            "GRPCXX_SEED={seed}, round {round}: {script:?}"
        );
    }
}

#[test]
fn the_corpus_of_the_fuzzer_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/shm_peer");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        hostile::peer(&fs::read(entry.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count > 0, "fuzz/corpus/shm_peer is empty");
}
