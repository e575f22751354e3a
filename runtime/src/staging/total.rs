//! What all connections of an engine have staged together, and the part of each peer.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use grpcxx_rpc::{Account, Code, Reason, Status, Tensor, TensorStore, Text};

use super::{STORE_STAGE, StagingLimits};

/// What all connections of an engine have staged together.
#[derive(Debug, Default)]
pub(crate) struct StagedTotal {
    ledger: Mutex<Ledger>,
}

#[derive(Debug, Default)]
struct Ledger {
    all: Amount,
    /// The peers that have staged something.
    peers: HashMap<Account, Amount, RandomState>,
}

/// Tensors of a push.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) tensors: usize,
    /// For which the store counts them.
    pub(super) bytes: u64,
    /// What metrics tell.
    pub(super) data_bytes: u64,
}

/// Tensors of one call, and their part of the total, which is given back when this is dropped.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) tensors: Vec<(Text, Tensor)>,
    pub(super) amount: Amount,
    account: Account,
    total: Arc<StagedTotal>,
}

impl StagedTotal {
    pub(crate) fn tensors(&self) -> usize {
        self.lock().all.tensors
    }

    pub(crate) fn data_bytes(&self) -> u64 {
        self.lock().all.data_bytes
    }

    /// Counts what a peer stages. It may have a part of what the store and other peers leave, so
    /// another peer always finds something left.
    fn admit(
        &self,
        store: &TensorStore,
        account: Account,
        amount: Amount,
        limits: &StagingLimits,
    ) -> Result<(), Status> {
        let mut ledger = self.lock();
        let before = ledger.of(account);
        let all = ledger.all.plus(amount);
        store.check_staged(all.tensors, all.bytes)?;
        let others = ledger.all.minus(before);
        let room = Room::of(store, others, limits);
        let wanted = before.plus(amount);
        if !room.has(wanted) {
            let text = format!("{STORE_STAGE}: {wanted} would be staged by this peer; {room}");
            return Err(Status::new(Code::ResourceExhausted, text).because(Reason::Limit));
        }
        ledger.all = all;
        ledger.peers.insert(account, wanted);
        Ok(())
    }

    fn give_back(&self, account: Account, amount: Amount) {
        let mut ledger = self.lock();
        ledger.all = ledger.all.minus(amount);
        let left = ledger.of(account).minus(amount);
        if left == Amount::default() {
            ledger.peers.remove(&account);
        } else {
            ledger.peers.insert(account, left);
        }
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn peers(&self) -> usize {
        self.lock().peers.len()
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledger {
    fn of(&self, account: Account) -> Amount {
        self.peers.get(&account).copied().unwrap_or_default()
    }
}

impl Amount {
    pub(super) fn of(tensors: &[(Text, Tensor)]) -> Self {
        let all = Self {
            tensors: tensors.len(),
            ..Self::default()
        };
        tensors.iter().fold(all, |all, (name, tensor)| Self {
            bytes: all.bytes + TensorStore::entry_bytes(name, tensor),
            data_bytes: all.data_bytes + tensor.data.len() as u64,
            ..all
        })
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            tensors: self.tensors + other.tensors,
            bytes: self.bytes + other.bytes,
            data_bytes: self.data_bytes + other.data_bytes,
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            tensors: self.tensors - other.tensors,
            bytes: self.bytes - other.bytes,
            data_bytes: self.data_bytes - other.data_bytes,
        }
    }
}

/// What one peer may stage now.
struct Room {
    /// Its part of what is left.
    part: Amount,
    bytes_max: u64,
    stored_bytes: u64,
    others: Amount,
}

impl Room {
    /// Half of what is left while others stage too; a peer that is alone has most of it, since a
    /// model that fits is to be taken.
    fn of(store: &TensorStore, others: Amount, allowed: &StagingLimits) -> Self {
        let (kept_part, bytes_max) = match others.tensors {
            0 => (8, allowed.bytes_alone_max),
            _ => (2, allowed.bytes_max),
        };
        let limits = store.limits();
        let stored_bytes = store.stored_bytes();
        let left_bytes = limits.stored_bytes.saturating_sub(stored_bytes);
        let left_bytes = left_bytes.saturating_sub(others.bytes);
        let left_tensors = limits.tensors.saturating_sub(others.tensors);
        Self {
            // The last tensor may be taken by anybody.
            part: Amount {
                tensors: left_tensors - left_tensors / kept_part,
                bytes: left_bytes - left_bytes / kept_part as u64,
                ..Amount::default()
            },
            bytes_max,
            stored_bytes,
            others,
        }
    }

    fn has(&self, wanted: Amount) -> bool {
        let bytes_max = self.part.bytes.min(self.bytes_max);
        wanted.tensors <= self.part.tensors && wanted.bytes <= bytes_max
    }
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.bytes_max < self.part.bytes {
            write!(
                f,
                "one peer may stage {} bytes (GRPCXX_PEER_STAGED_BYTES_MAX), ",
                self.bytes_max
            )?;
        }
        write!(
            f,
            "{} are its part of what the {} bytes of the store and {} of other peers leave of the \
             store's limits; remove what is stored or commit what is staged first, or push fewer at \
             once",
            self.part, self.stored_bytes, self.others
        )
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tensors of {} bytes in all", self.tensors, self.bytes)
    }
}

impl Batch {
    /// Takes tensors in that the store would take.
    pub(super) fn admit(
        store: &TensorStore,
        total: &Arc<StagedTotal>,
        account: Account,
        feeds: Vec<(Text, Tensor)>,
        limits: &StagingLimits,
    ) -> Result<Self, Status> {
        for (name, tensor) in &feeds {
            store.check(name, tensor)?;
        }
        let amount = Amount::of(&feeds);
        total.admit(store, account, amount, limits)?;
        Ok(Self {
            tensors: feeds,
            amount,
            account,
            total: Arc::clone(total),
        })
    }

    /// Copies what is lent, or shares memory with others.
    pub(super) fn into_private(mut self) -> Self {
        for (_, tensor) in &mut self.tensors {
            tensor.make_private();
        }
        self
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.total.give_back(self.account, self.amount);
    }
}
