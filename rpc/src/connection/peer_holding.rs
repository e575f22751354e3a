//! What the connections of one peer hold together: answers that have not left, and keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::PeerViolation;

/// What one peer may hold over all its connections, and what it holds.
///
/// Each connection tells what it holds in steps of 64 KiB, so that small answers and keys cost
/// nothing; that much is its own, whatever the others hold.
#[derive(Debug)]
pub struct PeerHolding {
    unsent_bytes: AtomicU64,
    unsent_bytes_max: u64,
    key_bytes: AtomicU64,
    key_bytes_max: u64,
}

/// What one connection has told of what it holds. It is given back when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct HoldingPart {
    of: Option<Arc<PeerHolding>>,
    unsent_bytes: u64,
    key_bytes: u64,
}

impl PeerHolding {
    /// Nothing yet, of so many bytes of answers that have not left, and of keys.
    pub fn new(unsent_bytes_max: u64, key_bytes_max: u64) -> Self {
        Self {
            unsent_bytes: AtomicU64::new(0),
            unsent_bytes_max,
            key_bytes: AtomicU64::new(0),
            key_bytes_max,
        }
    }

    fn owes_much(&self) -> bool {
        self.unsent_bytes.load(Ordering::Relaxed) >= self.unsent_bytes_max
    }
}

impl HoldingPart {
    /// Counts what is held for another peer from now on.
    pub(crate) fn belong_to(&mut self, peer: Arc<PeerHolding>) {
        let (unsent_bytes, key_bytes) = (self.unsent_bytes, self.key_bytes);
        self.tell(0, 0);
        self.of = Some(peer);
        self.tell(unsent_bytes, key_bytes);
    }

    /// Notes how many bytes of answers have not left.
    #[inline]
    pub(crate) fn note_unsent(&mut self, bytes: u64) {
        let is_drained = bytes == 0 && self.unsent_bytes != 0;
        if is_drained || bytes.abs_diff(self.unsent_bytes) >= STEP_BYTES {
            self.tell(bytes, self.key_bytes);
        }
    }

    /// Whether no other request is to be served before answers have left of this connection, which
    /// owes some.
    #[inline]
    pub(crate) fn owes_much(&self) -> bool {
        self.unsent_bytes != 0 && self.of.as_deref().is_some_and(PeerHolding::owes_much)
    }

    /// Whether an answer of so many bytes may still be made. A small one always may.
    #[inline]
    pub(crate) fn may_owe(&self, bytes: u64) -> bool {
        bytes < STEP_BYTES || !self.of.as_deref().is_some_and(PeerHolding::owes_much)
    }

    /// Notes how many bytes of keys are kept.
    #[inline]
    pub(crate) fn note_keys(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        if bytes.abs_diff(self.key_bytes) >= STEP_BYTES {
            self.tell(self.unsent_bytes, bytes);
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
        if self.key_bytes != 0 && self.of.as_deref().is_some_and(is_full) {
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
    fn tell(&mut self, unsent_bytes: u64, key_bytes: u64) {
        let Some(peer) = &self.of else {
            return;
        };
        // What was told before is part of the sums, so they wrap to what they are without it.
        let change = |sum: &AtomicU64, before: u64, now: u64| {
            sum.fetch_add(now.wrapping_sub(before), Ordering::Relaxed)
        };
        change(&peer.unsent_bytes, self.unsent_bytes, unsent_bytes);
        change(&peer.key_bytes, self.key_bytes, key_bytes);
        (self.unsent_bytes, self.key_bytes) = (unsent_bytes, key_bytes);
    }
}

impl Drop for HoldingPart {
    fn drop(&mut self) {
        self.tell(0, 0);
    }
}

/// What a connection may hold before others of its peer count.
const STEP_BYTES: u64 = 64 << 10;

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
