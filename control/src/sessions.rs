//! The sessions that peers have opened, by handle.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use grpcxx_rpc::{Account, Code, Places, Status};
use prometheus::IntGauge;
use tokio::time::Instant;

use crate::limits::SESSION_HANDLE_BYTES_MAX;
use crate::lock::lock;
use crate::metrics::{GaveWay, Metrics};

/// Sessions of one kind. Where there are too many, the one that was not used for longest is closed.
#[derive(Debug)]
pub(crate) struct Sessions {
    open: Mutex<Open>,
    idle_max: Option<Duration>,
    count: IntGauge,
    metrics: Arc<Metrics>,
    opened: AtomicU64,
    random: RandomState,
}

/// Invariant: each handle has a place, and each place a handle.
#[derive(Debug)]
struct Open {
    by_handle: HashMap<String, u64>,
    places: Places<String, Instant>,
}

impl Sessions {
    pub(crate) fn new(
        places: Places<String, Instant>,
        idle_max: Option<Duration>,
        count: IntGauge,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            open: Mutex::new(Open {
                by_handle: HashMap::new(),
                places,
            }),
            idle_max,
            count,
            metrics,
            opened: AtomicU64::new(0),
            random: RandomState::new(),
        }
    }

    /// Opens the session `handle`; one that is open stays open.
    pub(crate) fn open(&self, handle: &str, account: Account) -> Result<(), Status> {
        if handle.is_empty() || handle.len() > SESSION_HANDLE_BYTES_MAX {
            return Err(Status::new(
                Code::InvalidArgument,
                format!(
                    "the session handle has {} bytes, allowed are 1 to {SESSION_HANDLE_BYTES_MAX}",
                    handle.len()
                ),
            ));
        }
        let mut open = self.lock();
        if open.touch(handle) {
            return Ok(());
        }
        let taken = open.places.take(account, handle.to_owned(), Instant::now());
        let given = taken.map_err(|_| {
            let text = format!(
                "{} sessions are open, as many as are allowed; close those that are over",
                open.by_handle.len()
            );
            Status::new(Code::ResourceExhausted, text)
        })?;
        if let Some(unused) = given.gave_way {
            self.forget(&mut open, &unused);
        }
        open.by_handle.insert(handle.to_owned(), given.place);
        self.publish(&open);
        Ok(())
    }

    /// Opens a session and chooses its handle.
    pub(crate) fn open_new(&self, account: Account) -> Result<String, Status> {
        // The hash of a counter under a random key: not to be guessed, and unlikely to come twice.
        let handle = loop {
            let number = self.opened.fetch_add(1, Ordering::Relaxed);
            let handle = format!("{:016x}", self.random.hash_one(number));
            if !self.use_session(&handle) {
                break handle;
            }
        };
        self.open(&handle, account)?;
        Ok(handle)
    }

    /// Closes the session; false if it was not open.
    pub(crate) fn close(&self, handle: &str) -> bool {
        let mut open = self.lock();
        let place = open.by_handle.remove(handle);
        if let Some(place) = place {
            open.places.release(place);
        }
        self.publish(&open);
        place.is_some()
    }

    pub(crate) fn close_all(&self) {
        let mut open = self.lock();
        while let Some(handle) = open.places.take_any() {
            open.by_handle.remove(&handle);
        }
        self.publish(&open);
    }

    /// Closes the sessions that nobody has used for long.
    pub(crate) fn close_idle(&self) {
        let latest = self
            .idle_max
            .and_then(|idle_max| Instant::now().checked_sub(idle_max));
        let Some(latest) = latest else {
            return;
        };
        let mut open = self.lock();
        while let Some(unused) = open.places.take_idle_since(latest) {
            self.forget(&mut open, &unused);
        }
        self.publish(&open);
    }

    /// Whether the session is open; if so it is used now.
    pub(crate) fn use_session(&self, handle: &str) -> bool {
        self.lock().touch(handle)
    }

    fn forget(&self, open: &mut Open, handle: &str) {
        open.by_handle.remove(handle);
        self.metrics.gave_way(GaveWay::Session);
    }

    fn publish(&self, open: &Open) {
        let count = i64::try_from(open.places.len());
        self.count.set(count.unwrap_or(i64::MAX));
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        lock(&self.open)
    }
}

impl Open {
    /// Notes that a session is used now, if it is open.
    fn touch(&mut self, handle: &str) -> bool {
        let Some(&place) = self.by_handle.get(handle) else {
            return false;
        };
        self.places.begin_use(place);
        self.places.end_use(place, Instant::now());
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const IDLE_MAX: Duration = Duration::from_secs(60);

    fn sessions(places: Places<String, Instant>) -> Sessions {
        let count = IntGauge::new("sessions", "test").unwrap();
        Sessions::new(places, Some(IDLE_MAX), count, Metrics::new())
    }

    fn account(last: u8) -> Account {
        Account::of([10, 0, 0, last].into())
    }

    #[test]
    fn the_session_that_was_not_used_for_longest_gives_way() {
        let sessions = sessions(Places::new(2, 100));
        for handle in ["a", "b", "a", "c"] {
            sessions.open(handle, account(1)).unwrap();
        }
        assert!(!sessions.use_session("b"));
        assert!(sessions.use_session("a"));
        assert_eq!(sessions.count.get(), 2);
        assert!(sessions.close("a") && !sessions.close("a"));
        sessions.open("b", account(1)).unwrap();
        sessions.close_all();
        assert_eq!(sessions.count.get(), 0);
        assert!(!sessions.use_session("c"));
    }

    #[test]
    fn who_opens_sessions_without_end_closes_its_own() {
        let sessions = sessions(Places::new(10, 50));
        sessions.open("honest", account(1)).unwrap();
        for _ in 0..100 {
            sessions.open_new(account(2)).unwrap();
        }
        assert!(sessions.use_session("honest"));
        assert_eq!(sessions.count.get(), 6);
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_that_nobody_uses_expire() {
        let sessions = sessions(Places::new(10, 100));
        sessions.open("used", account(1)).unwrap();
        sessions.open("left", account(1)).unwrap();
        tokio::time::advance(IDLE_MAX / 2).await;
        assert!(sessions.use_session("used"));
        tokio::time::advance(IDLE_MAX / 2).await;
        sessions.close_idle();
        assert!(sessions.use_session("used") && !sessions.use_session("left"));
        assert_eq!(sessions.count.get(), 1);
    }

    #[test]
    fn handles_have_a_length() {
        let sessions = sessions(Places::new(2, 100));
        let long = "x".repeat(SESSION_HANDLE_BYTES_MAX + 1);
        for bad in ["", &long] {
            let refused = sessions.open(bad, account(1)).unwrap_err();
            assert_eq!(refused.code, Code::InvalidArgument);
        }
    }

    #[test]
    fn chosen_handles_differ() {
        let sessions = sessions(Places::new(100, 100));
        let handles: HashSet<_> = (0..100)
            .map(|_| sessions.open_new(account(1)).unwrap())
            .collect();
        assert_eq!(handles.len(), 100);
    }
}
