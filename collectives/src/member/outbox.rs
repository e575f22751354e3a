//! What this rank has sent, by rank: whether each has taken it, and who takes nothing any more.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use grpcxx_memory::Buffer;
use grpcxx_runtime::Time;

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

/// What is on its way, and what is to be done when it has left: descriptions, what this rank has
/// combined for others, and why the group is over.
#[derive(Default)]
pub(super) struct Unsent(Mutex<Option<Box<dyn FnOnce() + Send>>>);

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

    /// The ranks that have yet to take something.
    pub(super) fn debtors(&self) -> impl Iterator<Item = u32> {
        let owing = self.0.iter().filter(|(_, account)| !account.is_even());
        owing.map(|(&to, _)| to)
    }

    /// The ranks that have yet to take something, and how long each has taken nothing, as far as
    /// somebody has looked.
    pub(super) fn slow(&mut self, now: Time) -> Vec<(u32, Duration)> {
        let accounts = self.0.iter_mut();
        let slow = accounts.filter_map(|(&to, account)| {
            let taken = account.taken.load(Ordering::Relaxed);
            if account.sent == taken {
                account.seen = None;
                return None;
            }
            let since = match account.seen {
                Some((seen, since)) if seen == taken => since,
                Some(_) | None => now,
            };
            account.seen = Some((taken, since));
            Some((to, now.since(since)))
        });
        slow.collect()
    }
}

impl Account {
    fn is_even(&self) -> bool {
        self.sent == self.taken.load(Ordering::Relaxed)
    }
}

impl Unsent {
    /// Does this when all has left.
    pub(super) fn then(&self, code: impl FnOnce() + Send + 'static) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(code));
    }

    /// What is to be done, which nobody does then.
    pub(super) fn take(&self) -> Option<Box<dyn FnOnce() + Send>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        let code = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(code) = code.take() {
            code();
        }
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
        let waited = |second| Duration::from_secs(second);
        let mut outbox = Outbox::default();
        let [first, second, other] = [4, 4, 7].map(|to| outbox.send(to));
        assert_eq!(outbox.slow(at(0)), [(4, waited(0)), (7, waited(0))]);
        drop(other);
        assert!(outbox.owes(4) && !outbox.owes(7) && !outbox.owes(1));
        assert!(outbox.debtors().eq([4]));
        assert_eq!(outbox.slow(at(8)), [(4, waited(8))]);
        drop(first);
        assert_eq!(outbox.slow(at(9)), [(4, waited(0))]);
        let third = outbox.send(4);
        assert_eq!(outbox.slow(at(19)), [(4, waited(10))]);
        drop((second, third));
        assert!(outbox.is_even() && outbox.slow(at(99)).is_empty());
    }
}
