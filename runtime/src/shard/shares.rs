//! What a peer may hold of an engine, on one connection and over all of them, and what it holds.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use grpcxx_rpc::{Account, Code, Reason, RendezvousLimits, RequestId, Status, WaitingSteps};

/// What one peer may hold, so that others get their part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerShares {
    /// Most connections of one peer.
    pub connections: usize,
    /// Most steps in which requests of one connection wait.
    pub connection_steps: usize,
    /// Most steps in which requests of one peer wait, each connection by itself.
    pub steps: usize,
    /// Most requests of one peer that wait for tensors.
    pub waiting: usize,
}

impl PeerShares {
    /// Half of everything for a peer, and half of its steps for one of its connections.
    pub fn of(limits: &RendezvousLimits, connections: usize) -> Self {
        let half = |limit: usize| (limit / 2).max(1);
        Self {
            connections: half(connections),
            connection_steps: half(half(limits.steps)),
            steps: half(limits.steps),
            waiting: half(limits.waiters),
        }
    }
}

/// What each peer with a connection holds of the engine. Locked only where a connection begins or
/// ends.
#[derive(Debug, Default)]
pub(crate) struct Accounts(Mutex<HashMap<Account, Open, RandomState>>);

#[derive(Debug, Default)]
struct Open {
    connections: usize,
    held: Arc<Held>,
}

/// What one peer holds, over all its connections, whatever shards have them.
#[derive(Debug, Default)]
struct Held {
    steps: AtomicUsize,
    waiting: AtomicUsize,
}

/// The requests of one connection that wait for tensors, and the part of the connection in what its
/// peer holds. All of it is given back when this is dropped.
#[derive(Debug)]
pub(super) struct Waits {
    by_request: HashMap<RequestId, i64, RandomState>,
    steps: WaitingSteps,
    accounts: Arc<Accounts>,
    pub(super) account: Account,
    held: Arc<Held>,
}

impl Accounts {
    /// Counts a connection of a peer; `None` if it has as many as it may.
    pub(super) fn join(self: &Arc<Self>, account: Account, shares: &PeerShares) -> Option<Waits> {
        let mut accounts = self.lock();
        let open = accounts.entry(account).or_default();
        if open.connections >= shares.connections {
            return None;
        }
        open.connections += 1;
        Some(Waits {
            by_request: HashMap::default(),
            steps: WaitingSteps::default(),
            accounts: Arc::clone(self),
            account,
            held: Arc::clone(&open.held),
        })
    }

    fn leave(&self, account: Account) {
        let mut accounts = self.lock();
        if let Some(open) = accounts.get_mut(&account) {
            open.connections -= 1;
            if open.connections == 0 {
                accounts.remove(&account);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Account, Open, RandomState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waits {
    /// Whether a request may wait in a step.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED`: others of this connection, or of this peer, hold its whole share.
    #[inline]
    pub(super) fn may_begin(&self, step_id: i64, shares: &PeerShares) -> Result<(), Status> {
        let steps = self.held.steps.load(Ordering::Relaxed);
        let waiting = self.held.waiting.load(Ordering::Relaxed);
        if self.steps.len() < shares.connection_steps
            && steps < shares.steps
            && waiting < shares.waiting
        {
            return Ok(());
        }
        self.may_begin_at_limit(step_id, shares)
    }

    #[cold]
    fn may_begin_at_limit(&self, step_id: i64, shares: &PeerShares) -> Result<(), Status> {
        let waiting = self.held.waiting.load(Ordering::Relaxed);
        let text = if waiting >= shares.waiting {
            format!("{waiting} requests of this peer wait for tensors, as many as are allowed")
        } else if !self.steps.may_begin(step_id, shares.connection_steps) {
            format!(
                "requests of this connection wait in {} steps, as many as are allowed",
                shares.connection_steps
            )
        } else if self.steps.may_begin(step_id, 0) {
            return Ok(());
        } else if self.held.steps.load(Ordering::Relaxed) >= shares.steps {
            format!(
                "requests of this peer wait in {} steps, as many as are allowed",
                shares.steps
            )
        } else {
            return Ok(());
        };
        Err(Status::new(Code::ResourceExhausted, text).because(Reason::Limit))
    }

    pub(super) fn begin(&mut self, request: RequestId, step_id: i64) {
        self.by_request.insert(request, step_id);
        self.held.waiting.fetch_add(1, Ordering::Relaxed);
        if self.steps.begin(step_id) {
            self.held.steps.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A request waits no longer, if it did; its step.
    #[inline]
    pub(super) fn end(&mut self, request: RequestId) -> Option<i64> {
        if self.by_request.is_empty() {
            return None;
        }
        let step_id = self.by_request.remove(&request)?;
        self.give_back(step_id);
        Some(step_id)
    }

    /// Ends all, and says which requests waited in which steps.
    pub(super) fn end_all(&mut self) -> Vec<(RequestId, i64)> {
        let ended: Vec<(RequestId, i64)> = self.by_request.drain().collect();
        for (_, step_id) in &ended {
            self.give_back(*step_id);
        }
        ended
    }

    fn give_back(&mut self, step_id: i64) {
        self.held.waiting.fetch_sub(1, Ordering::Relaxed);
        if self.steps.end(step_id) {
            self.held.steps.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.end_all();
        self.accounts.leave(self.account);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use grpcxx_transport::SlotId;

    use super::*;

    const SHARES: PeerShares = PeerShares {
        connections: 3,
        connection_steps: 2,
        steps: 3,
        waiting: 6,
    };

    fn request(slot: u32) -> RequestId {
        RequestId::from_token(
            SlotId {
                slot,
                generation: 1,
            }
            .raw(),
        )
    }

    fn account(last: u8) -> Account {
        Account::of([10, 0, 0, last].into())
    }

    #[test]
    fn a_connection_and_a_peer_have_shares_of_the_steps() {
        let accounts = Arc::new(Accounts::default());
        let join = |last| accounts.join(account(last), &SHARES).unwrap();
        let (mut one, mut other, stranger) = (join(1), join(1), join(2));
        one.begin(request(1), 10);
        one.begin(request(2), 20);
        assert!(one.may_begin(30, &SHARES).is_err(), "its third step");
        assert_eq!(one.may_begin(10, &SHARES), Ok(()), "a step that it is in");
        assert_eq!(other.may_begin(30, &SHARES), Ok(()));
        other.begin(request(1), 30);
        let refused = other.may_begin(40, &SHARES).unwrap_err();
        assert_eq!(refused.code, Code::ResourceExhausted);
        assert_eq!(other.may_begin(30, &SHARES), Ok(()));
        assert_eq!(stranger.may_begin(40, &SHARES), Ok(()));
        assert_eq!(one.end(request(1)), Some(10));
        assert_eq!(one.end(request(1)), None);
        assert_eq!(other.may_begin(40, &SHARES), Ok(()));
        drop(one);
        other.begin(request(2), 40);
        assert_eq!(other.held.steps.load(Ordering::Relaxed), 2);
        assert_eq!(other.end_all().len(), 2);
    }

    #[test]
    fn a_peer_has_a_share_of_the_requests_that_wait() {
        let accounts = Arc::new(Accounts::default());
        let mut waits = accounts.join(account(1), &SHARES).unwrap();
        for slot in 0..6 {
            assert_eq!(waits.may_begin(1, &SHARES), Ok(()));
            waits.begin(request(slot), 1);
        }
        assert!(waits.may_begin(1, &SHARES).is_err());
        waits.end(request(0));
        assert_eq!(waits.may_begin(1, &SHARES), Ok(()));
    }

    #[test]
    fn a_peer_has_a_share_of_the_connections() {
        let accounts = Arc::new(Accounts::default());
        let join = |last| accounts.join(account(last), &SHARES);
        let mut open: Vec<_> = (0..3).map(|_| join(1).unwrap()).collect();
        assert!(join(1).is_none() && join(2).is_some());
        open.pop();
        assert!(join(1).is_some());
        drop(open);
        assert!(accounts.lock().is_empty());
    }
}
