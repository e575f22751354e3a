use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use crossbeam_queue::ArrayQueue;
use grpcxx_transport::{Refusal, Refused};

use super::Doorbell;

/// The end of a shard's inbox that any thread may hold.
#[derive(Debug)]
pub struct InboxSender<T> {
    shared: Arc<Shared<T>>,
    doorbell: Doorbell,
}

/// The shard's end of its inbox.
#[derive(Debug)]
pub struct Inbox<T> {
    shared: Arc<Shared<T>>,
}

#[derive(Debug)]
struct Shared<T> {
    queue: ArrayQueue<T>,
    closed: AtomicBool,
}

/// An inbox for at most `capacity` values; each push rings `doorbell`.
///
/// # Panics
/// If `capacity` is 0.
pub fn inbox<T>(capacity: usize, doorbell: Doorbell) -> (InboxSender<T>, Inbox<T>) {
    let shared = Arc::new(Shared {
        queue: ArrayQueue::new(capacity),
        closed: AtomicBool::new(false),
    });
    let sender = InboxSender {
        shared: shared.clone(),
        doorbell,
    };
    (sender, Inbox { shared })
}

impl<T> InboxSender<T> {
    /// Queues a value and wakes the shard.
    ///
    /// Values that were accepted while the inbox was closed go to `stranded`: the shard may have
    /// looked for the last time.
    ///
    /// # Errors
    /// The value comes back: the inbox is full, or it is closed.
    pub fn push(&self, value: T, stranded: impl FnMut(T)) -> Result<(), Refused<T>> {
        if self.is_closed() {
            return Err(Refused {
                value,
                refusal: Refusal::NotOpen,
            });
        }
        self.shared.queue.push(value).map_err(|value| Refused {
            value,
            refusal: Refusal::Full,
        })?;
        fence(Ordering::SeqCst);
        if self.is_closed() {
            self.shared.clear(stranded);
        }
        self.doorbell.ring();
        Ok(())
    }

    /// Takes no further value. The shard still finds those that are in.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Whether the inbox takes no further value, because its shard or the whole engine has ended.
    pub fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }
}

impl<T> Clone for InboxSender<T> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            doorbell: self.doorbell.clone(),
        }
    }
}

impl<T> Inbox<T> {
    /// Takes the value that waits longest.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        // A look costs less than an attempt, which is a full fence, and most turns find nothing.
        if self.is_empty() {
            return None;
        }
        self.shared.queue.pop()
    }

    /// Hands at most `limit` values to `take`. Returns how many there were.
    pub fn drain(&mut self, limit: usize, mut take: impl FnMut(T)) -> usize {
        for count in 0..limit {
            match self.pop() {
                Some(value) => take(value),
                None => return count,
            }
        }
        limit
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.shared.queue.is_empty()
    }

    /// Takes no further value, and hands those that are in to `stranded`.
    pub fn close(&mut self, stranded: impl FnMut(T)) {
        self.shared.close();
        self.shared.clear(stranded);
    }
}

impl<T> Drop for Inbox<T> {
    fn drop(&mut self) {
        self.close(drop);
    }
}

impl<T> Shared<T> {
    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    fn clear(&self, mut take: impl FnMut(T)) {
        while let Some(value) = self.queue.pop() {
            take(value);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::mesh::doorbell;

    #[test]
    fn a_full_inbox_hands_the_value_back() {
        let (bell, _sleeper) = doorbell();
        let (sender, mut inbox) = inbox(2, bell);
        sender.push(1, drop).unwrap();
        sender.push(2, drop).unwrap();
        let refused = sender.push(3, drop).unwrap_err();
        assert_eq!((refused.value, refused.refusal), (3, Refusal::Full));
        let mut taken = Vec::new();
        assert_eq!(inbox.drain(1, |value| taken.push(value)), 1);
        assert_eq!(inbox.drain(9, |value| taken.push(value)), 1);
        assert_eq!(taken, [1, 2]);
        assert!(inbox.is_empty());
    }

    #[test]
    fn a_closed_inbox_keeps_nothing() {
        let (bell, _sleeper) = doorbell();
        let (sender, inbox) = inbox(4, bell);
        let value = Arc::new(());
        sender.push(value.clone(), drop).unwrap();
        drop(inbox);
        assert_eq!(Arc::strong_count(&value), 1);
        let refused = sender.clone().push(value.clone(), drop).unwrap_err();
        assert_eq!(refused.refusal, Refusal::NotOpen);
    }

    #[test]
    fn a_sender_may_close_and_the_shard_finds_what_was_in() {
        let (bell, _sleeper) = doorbell();
        let (sender, mut inbox) = inbox(4, bell);
        sender.push(1, drop).unwrap();
        sender.close();
        assert_eq!(sender.push(2, drop).unwrap_err().value, 2);
        assert_eq!(inbox.pop(), Some(1));
        assert_eq!(inbox.pop(), None);
    }

    #[test]
    fn each_value_is_refused_or_stranded_or_found_once() {
        use std::sync::atomic::AtomicUsize;
        for _round in 0..200 {
            let (bell, _sleeper) = doorbell();
            let (sender, mut inbox) = inbox(64, bell);
            let seen = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..32 {
                        let count = |()| {
                            seen.fetch_add(1, Ordering::Relaxed);
                        };
                        if sender.push((), count).is_err() {
                            count(());
                        }
                    }
                });
                inbox.close(|()| {
                    seen.fetch_add(1, Ordering::Relaxed);
                });
            });
            assert_eq!(seen.load(Ordering::Relaxed), 32);
        }
    }

    #[test]
    fn no_value_is_stranded_while_the_shard_ends() {
        for _round in 0..200 {
            let (bell, _sleeper) = doorbell();
            let (sender, inbox) = inbox(64, bell);
            let value = Arc::new(());
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..32 {
                        let _refused = sender.push(value.clone(), drop);
                    }
                });
                drop(inbox);
            });
            assert_eq!(Arc::strong_count(&value), 1);
        }
    }
}
