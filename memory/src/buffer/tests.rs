//! Buffers over every kind of memory.
#![expect(unsafe_code, reason = "foreign memory to make buffers of")]

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::{Arena, ArenaOptions};

fn arena() -> Arena {
    Arena::new(ArenaOptions {
        capacity_bytes: 1 << 20,
        huge_pages: false,
        ..ArenaOptions::default()
    })
    .unwrap()
}

fn digits(mut buffer: BufferMut) -> Buffer {
    buffer.copy_from_slice(b"0123456789");
    buffer.freeze()
}

/// The same ten bytes in every kind of memory.
fn all_kinds(arena: &mut Arena) -> Vec<Buffer> {
    let foreign = Box::new(b"0123456789".to_vec());
    let start = NonNull::from(foreign.as_slice()).cast();
    vec![
        Buffer::from(&b"0123456789"[..]),
        digits(arena.allocate(10).unwrap()),
        digits(BufferMut::zeroed(10)),
        Buffer::from(Bytes::copy_from_slice(b"0123456789")),
        Buffer::from_owner(String::from("0123456789")),
        // SAFETY: the vector's memory stays where it is until the buffer drops it.
        unsafe { Buffer::from_foreign(start, 10, foreign) },
    ]
}

#[test]
fn slices_share_memory_and_compare_by_content() {
    for buffer in all_kinds(&mut arena()) {
        assert_eq!(&buffer[..], b"0123456789");
        assert_eq!(buffer, Buffer::from(b"0123456789".to_vec()));
        let part = buffer.slice(2..=5);
        assert_eq!(part.as_ptr(), buffer[2..].as_ptr());
        let inner = part.slice(1..).slice(..2);
        assert_eq!(&inner[..], b"34");
        assert_ne!(inner, part);
        let found = buffer.slice_ref(&part[1..3]).unwrap();
        assert_eq!((found.as_ptr(), found.len()), (inner.as_ptr(), 2));
        assert!(inner.slice_ref(&buffer[2..4]).is_none());
        assert!(inner.slice_ref(b"34").is_none());
        assert!(inner.slice_ref(&[]).unwrap().is_empty());
        drop((buffer, part));
        assert_eq!(&inner[..], b"34");
    }
}

#[test]
fn memory_that_is_shared_is_known() {
    for buffer in all_kinds(&mut arena()) {
        let start = buffer.as_ptr();
        let part = buffer.slice(2..5);
        assert!(part.overlaps(start, 3) && part.overlaps(start, 10));
        assert!(part.overlaps(buffer[4..].as_ptr(), 1));
        assert!(!part.overlaps(start, 2) && !part.overlaps(buffer[5..].as_ptr(), 5));
        assert!(!part.overlaps(part.as_ptr(), 0) && !Buffer::new().overlaps(start, 10));
    }
}

#[test]
fn parts_keep_the_memory_and_nothing_else_does() {
    for (kind, buffer) in all_kinds(&mut arena()).into_iter().enumerate() {
        let expected = buffer.clone();
        let mut parts = Parts::new(buffer, 2);
        assert_eq!(parts.whole(), &expected);
        let cut: Vec<Buffer> = [0..3, 3..3, 3..10, 2..4]
            .map(|range| parts.cut(range))
            .into();
        let bytes: Vec<&[u8]> = cut.iter().map(|part| &part[..]).collect();
        assert_eq!(bytes, [b"012".as_slice(), b"", b"3456789", b"23"], "{kind}");
        assert_eq!(cut[0].as_ptr(), expected.as_ptr());
    }
    for (count, cut) in [(0, 0), (0, 2), (3, 0), (3, 1), (3, 3), (3, 5)] {
        let mut arena = arena();
        let mut parts = Parts::new(digits(arena.allocate(10).unwrap()), count);
        let mut kept: Vec<Buffer> = (0..cut).map(|at| parts.cut(at..at + 1)).collect();
        drop(parts);
        let last = kept.pop();
        drop(kept);
        assert_eq!(
            arena.reclaim(),
            usize::from(last.is_none()),
            "{count} {cut}"
        );
        assert!(last.as_ref().is_none_or(Buffer::is_unique));
        let was_kept = last.is_some();
        drop(last);
        assert_eq!(arena.reclaim(), usize::from(was_kept), "{count} {cut}");
    }
}

#[test]
fn empty_slices_own_nothing() {
    let mut arena = arena();
    let empty = digits(arena.allocate(10).unwrap()).slice(10..);
    assert_eq!(arena.reclaim(), 1);
    assert_eq!(empty, Buffer::default());
    assert!(empty.try_into_mut().unwrap().is_empty());
}

#[test]
#[should_panic(expected = "slice 3..11 of a buffer of 10 bytes")]
fn a_slice_beyond_the_end_panics() {
    Buffer::from(&b"0123456789"[..]).slice(3..11);
}

#[test]
#[should_panic(expected = "of a buffer of 10 bytes")]
fn an_endless_slice_panics() {
    Buffer::from(&b"0123456789"[..]).slice(..=usize::MAX);
}

#[test]
fn only_the_last_owner_may_write_again() {
    let mut arena = arena();
    for buffer in [
        digits(arena.allocate(10).unwrap()),
        digits(BufferMut::zeroed(10)),
    ] {
        assert!(buffer.is_unique());
        let part = buffer.slice(4..8);
        assert!(!buffer.is_unique());
        let buffer = buffer.try_into_mut().unwrap_err();
        drop(buffer);
        assert!(part.is_unique());
        let mut part = part.try_into_mut().unwrap();
        part[0] = b'x';
        part.truncate(3);
        assert_eq!(&part.freeze()[..], b"x56");
    }
    assert_eq!(arena.reclaim(), 1);
    for shared in [Buffer::from(&b"static"[..]), Buffer::from_owner([1, 2, 3])] {
        assert!(!shared.is_unique());
        assert!(shared.try_into_mut().is_err());
    }
}

#[test]
fn bytes_and_back() {
    for buffer in all_kinds(&mut arena()) {
        let start = buffer.as_ptr();
        let bytes = Bytes::from(buffer);
        assert_eq!((bytes.as_ptr(), &bytes[..]), (start, &b"0123456789"[..]));
        let buffer = Buffer::from(bytes);
        assert_eq!((buffer.as_ptr(), &buffer[..]), (start, &b"0123456789"[..]));
    }
    assert!(Buffer::from(Bytes::new()).is_empty());
}

#[test]
fn foreign_memory_is_released_once_by_the_last() {
    struct Owner(Box<[u8; 4]>, Arc<AtomicUsize>);
    impl Drop for Owner {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let foreign = || {
        let mut owner = Box::new(Owner(Box::new([1, 2, 3, 4]), Arc::clone(&drops)));
        let start = NonNull::from(&mut *owner.0).cast();
        // SAFETY: the inner box stays where it is until the owner is dropped, and nobody else uses
        // it.
        unsafe { BufferMut::from_foreign(start, 4, owner) }
    };
    drop(foreign());
    assert_eq!(drops.load(Ordering::Relaxed), 1);

    let mut buffer = foreign();
    buffer[1] = 9;
    assert_eq!(format!("{buffer:?}"), "BufferMut(4 bytes, foreign)");
    let buffer = buffer.freeze();
    let part = buffer.slice(1..3);
    drop(buffer);
    assert_eq!(&part[..], [9, 3]);
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    drop(part);
    assert_eq!(drops.load(Ordering::Relaxed), 2);

    let mut buffer = foreign();
    buffer.truncate(0);
    assert!(buffer.freeze().is_empty());
    assert_eq!(drops.load(Ordering::Relaxed), 3);
}

#[test]
fn vectors_of_any_capacity_are_freed() {
    let mut roomy = Vec::with_capacity(100);
    roomy.extend_from_slice(b"few");
    assert_eq!(&Buffer::from(roomy)[..], b"few");
    assert!(Buffer::from(Vec::new()).is_empty());
    assert!(BufferMut::zeroed(0).freeze().is_empty());
    assert_eq!(&Buffer::from(BufferMut::from(vec![1, 2]))[..], [1, 2]);
}
