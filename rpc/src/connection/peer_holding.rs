//! What the connections of one peer hold together: answers that have not left, keys, and frames
//! that are not complete.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use grpcxx_memory::ArenaRoom;

use super::PeerViolation;
use super::reader::ArrivingBytes;
use crate::{Code, Reason, Status, has_part};

/// What one peer may hold over all its connections, and what it holds.
///
/// Each connection tells what it holds in steps of 64 KiB, so that small answers, keys and frames
/// cost nothing; that much is its own, whatever the others hold.
#[derive(Debug)]
pub struct PeerHolding {
    unsent_bytes: AtomicU64,
    unsent_bytes_max: u64,
    key_bytes: AtomicU64,
    key_bytes_max: u64,
    /// Memory of frames that are not complete, by the arena that they land in.
    arriving_bytes: Box<[OfArena]>,
    arriving_bytes_max: u64,
}

/// A sum that the shard of one arena changes, without the cache lines of others.
#[derive(Debug, Default)]
#[repr(align(128))]
struct OfArena(AtomicU64);

/// What one connection has told of what it holds. It is given back when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct HoldingPart {
    of: Option<Arc<PeerHolding>>,
    /// The arena that its frames land in.
    arena: usize,
    told: Held,
}

/// What a connection holds.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    unsent_bytes: u64,
    key_bytes: u64,
    arriving_bytes: u64,
}

impl PeerHolding {
    /// Nothing yet, of so many bytes of answers that have not left, and of keys.
    pub fn new(unsent_bytes_max: u64, key_bytes_max: u64) -> Self {
        Self {
            unsent_bytes: AtomicU64::new(0),
            unsent_bytes_max,
            key_bytes: AtomicU64::new(0),
            key_bytes_max,
            arriving_bytes: Box::new([OfArena::default()]),
            arriving_bytes_max: u64::MAX,
        }
    }

    /// The same, whose frames that are not complete have so many bytes in each of so many arenas
    /// while memory is short, or more while there is but one connection that has any.
    #[must_use]
    pub fn with_arriving(self, bytes_max: u64, arenas: usize) -> Self {
        Self {
            arriving_bytes: (0..arenas.max(1)).map(|_| OfArena::default()).collect(),
            arriving_bytes_max: bytes_max,
            ..self
        }
    }

    /// Memory of frames that land in this arena. All arenas are one if they take from the same.
    fn arriving_in(&self, arena: usize) -> &AtomicU64 {
        &self.arriving_bytes[arena % self.arriving_bytes.len()].0
    }

    fn owes_much(&self) -> bool {
        self.unsent_bytes.load(Ordering::Relaxed) >= self.unsent_bytes_max
    }
}

impl HoldingPart {
    /// Counts what is held for another peer from now on.
    pub(crate) fn belong_to(&mut self, peer: Arc<PeerHolding>) {
        let held = self.told;
        self.tell(Held::default());
        self.of = Some(peer);
        self.tell(held);
    }

    /// Says which arena the frames of the connection land in.
    pub(crate) fn land_in(&mut self, arena: usize) {
        self.arena = arena;
    }

    /// Notes how many bytes of answers have not left.
    #[inline]
    pub(crate) fn note_unsent(&mut self, bytes: u64) {
        let told = self.told;
        let is_drained = bytes == 0 && told.unsent_bytes != 0;
        if is_drained || bytes.abs_diff(told.unsent_bytes) >= STEP_BYTES {
            self.tell(Held {
                unsent_bytes: bytes,
                ..told
            });
        }
    }

    /// Notes how much memory frames have that are not complete.
    #[inline]
    pub(crate) fn note_arriving(&mut self, bytes: u64) {
        let told = self.told;
        let is_over = bytes == 0 && told.arriving_bytes != 0;
        if is_over || bytes.abs_diff(told.arriving_bytes) >= STEP_BYTES {
            self.tell(Held {
                arriving_bytes: bytes,
                ..told
            });
        }
    }

    /// Whether frames that are not complete may have so much memory. While others of the peer have
    /// none, or enough is left for those that come later, they may.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED`: memory is short, and it is more than the part of the connection.
    #[inline]
    pub(crate) fn check_arriving(
        &self,
        wanted: ArrivingBytes,
        room: impl FnOnce() -> Option<ArenaRoom>,
    ) -> Result<(), Status> {
        match &self.of {
            Some(peer) if wanted.frame >= STEP_BYTES => self.check_part(peer, wanted, room),
            _ => Ok(()),
        }
    }

    fn check_part(
        &self,
        peer: &PeerHolding,
        wanted: ArrivingBytes,
        room: impl FnOnce() -> Option<ArenaRoom>,
    ) -> Result<(), Status> {
        let all = peer.arriving_in(self.arena).load(Ordering::Relaxed);
        let others = all.saturating_sub(self.told.arriving_bytes);
        let (own, limit) = (wanted.all, peer.arriving_bytes_max);
        let all = others.saturating_add(own);
        let whole = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        if others == 0 || has_part(whole(own), whole(all), whole(limit)) {
            return Ok(());
        }
        let Some(room) = room() else {
            return Ok(());
        };
        let kept = kept_for_newcomers(room.whole_bytes);
        let kept = match wanted.frame <= limit / SMALL_PART {
            true => kept / 4,
            false => kept,
        };
        if room.free_bytes >= kept {
            return Ok(());
        }
        let text = format!(
            "memory is short ({} of {} bytes are free), and unfinished frames of this peer would \
             have {all} bytes of it, {own} of them on this connection, which has no larger part of \
             the {limit} allowed then; send less at once, or raise GRPCXX_ARENA_BYTES of the \
             receiver",
            room.free_bytes, room.whole_bytes
        );
        Err(Status::new(Code::ResourceExhausted, text).because(Reason::Memory))
    }

    /// Whether no other request is to be served before answers have left of this connection, which
    /// owes some.
    #[inline]
    pub(crate) fn owes_much(&self) -> bool {
        self.told.unsent_bytes != 0 && self.of.as_deref().is_some_and(PeerHolding::owes_much)
    }

    /// Whether an answer of so many bytes may still be made. A small one always may.
    #[inline]
    pub(crate) fn may_owe(&self, bytes: u64) -> bool {
        bytes < STEP_BYTES || !self.of.as_deref().is_some_and(PeerHolding::owes_much)
    }

    /// Notes how many bytes of keys are kept.
    #[inline]
    pub(crate) fn note_keys(&mut self, bytes: usize) {
        let (told, key_bytes) = (self.told, bytes as u64);
        if key_bytes.abs_diff(told.key_bytes) >= STEP_BYTES {
            self.tell(Held { key_bytes, ..told });
        }
    }

    /// Whether more keys may come to the connection.
    ///
    /// # Errors
    /// It keeps more than what is its own, and its peer as much as it may.
    #[inline]
    pub(crate) fn check_keys(&self) -> Result<(), PeerViolation> {
        let is_full =
            |peer: &PeerHolding| peer.key_bytes.load(Ordering::Relaxed) >= peer.key_bytes_max;
        if self.told.key_bytes != 0 && self.of.as_deref().is_some_and(is_full) {
            return Err(PeerViolation::PeerKeys);
        }
        Ok(())
    }

    /// Whether the peer keeps so many keys that its next connections are to do without.
    pub(crate) fn is_short_of_keys(&self) -> bool {
        self.of
            .as_ref()
            .is_some_and(|peer| peer.key_bytes.load(Ordering::Relaxed) >= peer.key_bytes_max / 2)
    }

    #[cold]
    fn tell(&mut self, now: Held) {
        let Some(peer) = &self.of else {
            return;
        };
        // What was told before is part of the sums, so they wrap to what they are without it.
        let change = |sum: &AtomicU64, before: u64, now: u64| {
            if now != before {
                sum.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
            }
        };
        let told = std::mem::replace(&mut self.told, now);
        change(&peer.unsent_bytes, told.unsent_bytes, now.unsent_bytes);
        change(&peer.key_bytes, told.key_bytes, now.key_bytes);
        let arriving = peer.arriving_in(self.arena);
        change(arriving, told.arriving_bytes, now.arriving_bytes);
    }
}

impl Drop for HoldingPart {
    fn drop(&mut self) {
        self.tell(Held::default());
    }
}

/// What of the memory for payload peers leave free that have more than their part: a quarter, and
/// what blocks are rounded up by, an eighth of it.
fn kept_for_newcomers(whole_bytes: u64) -> u64 {
    whole_bytes / 4 + whole_bytes / 32
}

/// What a connection may hold before others of its peer count.
const STEP_BYTES: u64 = 64 << 10;

/// Frames of up to this part of what the peer may have take of what is kept, down to a quarter of
/// it: who sends much keeps out none of its host that sends little.
const SMALL_PART: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn part_of(peer: &Arc<PeerHolding>) -> HoldingPart {
        let mut part = HoldingPart::default();
        part.belong_to(Arc::clone(peer));
        part
    }

    #[test]
    fn connections_of_a_peer_owe_so_much_together() {
        let peer = Arc::new(PeerHolding::new(10 * STEP_BYTES, 1));
        let [mut first, mut second, mut third] = [(); 3].map(|()| part_of(&peer));
        first.note_unsent(6 * STEP_BYTES);
        second.note_unsent(3 * STEP_BYTES);
        assert!(!first.owes_much() && second.may_owe(u64::MAX));
        second.note_unsent(4 * STEP_BYTES);
        assert!(first.owes_much() && second.owes_much());
        // Who owes little goes on, and makes small answers only.
        third.note_unsent(STEP_BYTES - 1);
        assert!(!third.owes_much() && third.may_owe(STEP_BYTES - 1));
        assert!(!third.may_owe(STEP_BYTES));
        first.note_unsent(1);
        assert!(!second.owes_much());
        first.note_unsent(0);
        drop((second, third));
        assert_eq!(peer.unsent_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn connections_of_a_peer_keep_so_many_keys_together() {
        const STEP: usize = STEP_BYTES as usize;
        let peer = Arc::new(PeerHolding::new(1, 4 * STEP_BYTES));
        let [mut first, mut second] = [(); 2].map(|()| part_of(&peer));
        first.note_keys(STEP);
        assert!(first.check_keys().is_ok() && !first.is_short_of_keys());
        first.note_keys(4 * STEP);
        assert!(first.check_keys().is_err() && second.is_short_of_keys());
        second.note_keys(STEP - 1);
        assert!(second.check_keys().is_ok());
        second.note_keys(STEP);
        assert!(second.check_keys().is_err());
        first.note_keys(2 * STEP);
        assert!(second.check_keys().is_ok());
    }

    /// Whether a connection may have so many bytes of frames if so many are free of an arena.
    fn may_have(part: &HoldingPart, bytes: u64, free_bytes: u64) -> bool {
        let wanted = ArrivingBytes {
            frame: bytes,
            all: bytes,
        };
        let room = || {
            Some(ArenaRoom {
                free_bytes,
                whole_bytes: 2 * LIMIT,
            })
        };
        part.check_arriving(wanted, room).is_ok()
    }

    const LIMIT: u64 = 64 << 20;

    #[test]
    fn connections_of_a_peer_share_memory_for_unfinished_frames_that_is_short() {
        let peer = Arc::new(PeerHolding::new(1, 1).with_arriving(LIMIT, 2));
        let [mut first, mut second, mut third] = [(); 3].map(|()| part_of(&peer));
        third.land_in(1);
        let may_have = |part: &HoldingPart, bytes| may_have(part, bytes, 0);
        assert!(may_have(&first, u64::MAX), "one alone has all");
        first.note_arriving(LIMIT / 4);
        assert!(may_have(&first, u64::MAX) && may_have(&second, LIMIT / 4));
        assert!(!may_have(&second, LIMIT / 2));
        second.note_arriving(LIMIT / 4);
        assert!(!may_have(&first, LIMIT / 2) && may_have(&second, STEP_BYTES));
        assert!(may_have(&third, u64::MAX), "the other arena is free");
        first.note_arriving(LIMIT);
        assert!(may_have(&second, STEP_BYTES - 1) && !may_have(&second, STEP_BYTES));
        first.note_arriving(0);
        assert!(may_have(&second, LIMIT));
    }

    #[test]
    fn connections_of_a_peer_have_what_is_free_beside_what_newcomers_need() {
        let peer = Arc::new(PeerHolding::new(1, 1).with_arriving(LIMIT, 1));
        let [mut first, second] = [(); 2].map(|()| part_of(&peer));
        first.note_arriving(2 * LIMIT);
        let kept = kept_for_newcomers(2 * LIMIT);
        assert!(may_have(&second, LIMIT, kept) && !may_have(&second, LIMIT, kept - 1));
        let small = LIMIT / SMALL_PART;
        assert!(may_have(&second, small, kept / 4) && !may_have(&second, small, kept / 4 - 1));
    }

    #[test]
    fn what_is_held_moves_to_who_the_peer_has_proven_to_be() {
        let [stranger, member] = [(); 2].map(|()| Arc::new(PeerHolding::new(1, 1)));
        let mut part = part_of(&stranger);
        part.note_unsent(STEP_BYTES);
        part.note_keys(2 << 20);
        part.belong_to(Arc::clone(&member));
        let held = |peer: &PeerHolding| {
            let value = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
            (value(&peer.unsent_bytes), value(&peer.key_bytes))
        };
        assert_eq!(held(&stranger), (0, 0));
        assert_eq!(held(&member), (STEP_BYTES, 2 << 20));
    }
}
