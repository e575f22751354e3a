use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use grpcxx_rpc::{Code, Status};
use prometheus::IntGauge;

use crate::limits::SESSION_HANDLE_BYTES_MAX;

/// The sessions that peers have opened, by handle.
#[derive(Debug)]
pub(crate) struct Sessions {
    open: Mutex<HashSet<String>>,
    sessions_max: usize,
    count: IntGauge,
    opened: AtomicU64,
    random: RandomState,
}

impl Sessions {
    pub(crate) fn new(sessions_max: usize, count: IntGauge) -> Self {
        Self {
            open: Mutex::default(),
            sessions_max,
            count,
            opened: AtomicU64::new(0),
            random: RandomState::new(),
        }
    }

    /// Opens the session `handle`; one that is open stays open.
    pub(crate) fn open(&self, handle: &str) -> Result<(), Status> {
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
        if open.len() >= self.sessions_max && !open.contains(handle) {
            return Err(Status::new(
                Code::ResourceExhausted,
                format!(
                    "{} sessions are open, as many as are allowed; close those that are over, or call MasterService.Reset",
                    open.len()
                ),
            ));
        }
        open.insert(handle.to_owned());
        self.publish(&open);
        Ok(())
    }

    /// Opens a session and chooses its handle.
    pub(crate) fn open_new(&self) -> Result<String, Status> {
        // The hash of a counter under a random key: not to be guessed, and unlikely to come twice.
        let handle = loop {
            let number = self.opened.fetch_add(1, Ordering::Relaxed);
            let handle = format!("{:016x}", self.random.hash_one(number));
            if !self.contains(&handle) {
                break handle;
            }
        };
        self.open(&handle)?;
        Ok(handle)
    }

    /// Closes the session; false if it was not open.
    pub(crate) fn close(&self, handle: &str) -> bool {
        let mut open = self.lock();
        let was_open = open.remove(handle);
        self.publish(&open);
        was_open
    }

    pub(crate) fn close_all(&self) {
        let mut open = self.lock();
        open.clear();
        self.publish(&open);
    }

    pub(crate) fn contains(&self, handle: &str) -> bool {
        self.lock().contains(handle)
    }

    fn publish(&self, open: &HashSet<String>) {
        self.count
            .set(i64::try_from(open.len()).unwrap_or(i64::MAX));
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        // A set of strings is whole after any panic between two of its operations.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions(sessions_max: usize) -> Sessions {
        Sessions::new(sessions_max, IntGauge::new("sessions", "test").unwrap())
    }

    #[test]
    fn a_full_table_refuses_new_handles_only() {
        let sessions = sessions(2);
        sessions.open("a").unwrap();
        sessions.open("b").unwrap();
        sessions.open("a").unwrap();
        let refused = sessions.open("c").unwrap_err();
        assert_eq!(refused.code, Code::ResourceExhausted);
        assert_eq!(sessions.count.get(), 2);
        assert!(sessions.close("a") && !sessions.close("a"));
        sessions.open("c").unwrap();
        sessions.close_all();
        assert_eq!(sessions.count.get(), 0);
    }

    #[test]
    fn handles_have_a_length() {
        let sessions = sessions(2);
        let long = "x".repeat(SESSION_HANDLE_BYTES_MAX + 1);
        for bad in ["", &long] {
            assert_eq!(sessions.open(bad).unwrap_err().code, Code::InvalidArgument);
        }
    }

    #[test]
    fn chosen_handles_differ() {
        let sessions = sessions(100);
        let handles: HashSet<_> = (0..100).map(|_| sessions.open_new().unwrap()).collect();
        assert_eq!(handles.len(), 100);
        assert!(sessions.open_new().is_err());
    }
}
