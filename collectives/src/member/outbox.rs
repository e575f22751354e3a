//! What this rank has sent, by rank: whether each has taken it, and who takes nothing any more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use grpcxx_memory::Buffer;
use grpcxx_runtime::Time;

use super::Unsent;

/// What was sent and may not be taken yet.
#[derive(Debug, Default)]
pub(super) struct Outbox(BTreeMap<u32, Account>);

/// What one rank was sent.
#[derive(Debug, Default)]
struct Account {
    sent: u64,
    /// How much was taken, or is not to be taken any more.
    taken: Arc<AtomicU64>,
    /// How much that was when it changed last, as far as somebody has looked, and when.
    seen: Option<(u64, Time)>,
}

/// Counts a message as taken when it is dropped.
#[derive(Debug)]
pub(super) struct Taken(Arc<AtomicU64>);

/// What is sent from memory that knows when it was.
pub(super) struct Kept {
    pub(super) data: Buffer,
    pub(super) _taken: Taken,
    /// If no operation waits for it.
    pub(super) _unsent: Option<Arc<Unsent>>,
}

impl Outbox {
    /// A message goes to a rank; it holds what is returned.
    pub(super) fn send(&mut self, to: u32) -> Taken {
        let account = self.0.entry(to).or_default();
        account.sent += 1;
        Taken(Arc::clone(&account.taken))
    }

    /// Whether a rank has yet to take something.
    pub(super) fn owes(&self, to: u32) -> bool {
        self.0.get(&to).is_some_and(|account| !account.is_even())
    }

    /// Whether all is taken.
    pub(super) fn is_even(&self) -> bool {
        self.0.values().all(Account::is_even)
    }

    /// The ranks that have taken nothing for as long as `patience`, though there was something.
    pub(super) fn slow(&mut self, now: Time, patience: Duration) -> Vec<u32> {
        let accounts = self.0.iter_mut();
        let slow = accounts.filter_map(|(&to, account)| {
            let taken = account.taken.load(Ordering::Relaxed);
            if account.sent == taken {
                account.seen = None;
                return None;
            }
            match account.seen {
                Some((seen, since)) if seen == taken => {
                    (now.since(since) >= patience).then_some(to)
                }
                Some(_) | None => {
                    account.seen = Some((taken, now));
                    None
                }
            }
        });
        slow.collect()
    }
}

impl Account {
    fn is_even(&self) -> bool {
        self.sent == self.taken.load(Ordering::Relaxed)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn whoever_takes_nothing_for_long_is_slow() {
        let at = |second: u64| Time::from_nanos(second * 1_000_000_000);
        let (mut outbox, patience) = (Outbox::default(), Duration::from_secs(10));
        let [first, second, other] = [4, 4, 7].map(|to| outbox.send(to));
        assert!(outbox.slow(at(0), patience).is_empty());
        drop(other);
        assert!(outbox.owes(4) && !outbox.owes(7) && !outbox.owes(1));
        drop(first);
        assert!(outbox.slow(at(9), patience).is_empty());
        let third = outbox.send(4);
        assert!(outbox.slow(at(18), patience).is_empty());
        assert_eq!(outbox.slow(at(19), patience), [4]);
        drop((second, third));
        assert!(outbox.is_even() && outbox.slow(at(99), patience).is_empty());
    }
}
