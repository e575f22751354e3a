//! Pushes of several calls: their tensors wait beside the store until one call makes all of them
//! visible at once.

mod client;
#[cfg(all(test, not(loom)))]
mod tests;
mod total;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;
use grpcxx_rpc::{Account, Code, GraphCall, Reason, Status, Tensor, TensorStore, Text};
use grpcxx_transport::Time;

pub use self::client::StagedPush;
pub(crate) use self::total::StagedTotal;
use self::total::{Amount, Batch};
use crate::command::Shared;
use crate::registry::put_all;

/// Name of the built-in function that stages tensors. The step id of the call is the number of the
/// push, which its maker chooses. A call without feeds begins the push; each other adds its feeds.
pub const STORE_STAGE: &str = "grpcxx.store.stage";
/// Name of the built-in function that puts all that was staged under the call's step id into the
/// store, all or none.
pub const STORE_COMMIT: &str = "grpcxx.store.commit";
/// Name of the built-in function that drops what was staged under the call's step id.
pub const STORE_DISCARD: &str = "grpcxx.store.discard";

/// What a call does with a push that is staged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Stage,
    Commit,
    Discard,
}

/// What a peer may stage, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StagingLimits {
    /// Most pushes of one connection at once.
    pub(crate) pushes_max: usize,
    /// Most bytes of one peer while others stage something too.
    pub(crate) bytes_max: u64,
    /// Most bytes of one peer while no other stages anything.
    pub(crate) bytes_alone_max: u64,
    /// How long a push waits for its next call.
    pub(crate) patience: Duration,
    /// How long a push lasts in all, and a second more for each MiB of it: one that gets a little
    /// again and again ends too.
    pub(crate) life: Duration,
}

/// The pushes that one connection stages. All of them are dropped with it.
#[derive(Debug)]
pub(crate) struct Staging {
    store: Shared<TensorStore>,
    total: Arc<StagedTotal>,
    limits: StagingLimits,
    pushes: Mutex<HashMap<u64, Push, RandomState>>,
    /// Why the last ones ended that ended with a call that was refused: calls of theirs that were
    /// under way then fail for the same reason.
    refused: Mutex<VecDeque<(u64, Status)>>,
    /// When the next push may have waited for too long, in nanoseconds: the shard's thread asks
    /// for it after each turn, and does not wait for the lock.
    next_end_ns: AtomicU64,
    /// What had come of the connection when pushes last waited on for a call on its way.
    seen_bytes: AtomicU64,
}

/// A push that is staged.
#[derive(Debug)]
pub(crate) struct Push {
    batches: Vec<Batch>,
    amount: Amount,
    /// When it is dropped, unless another call comes.
    ends: Time,
    /// When it is dropped, whatever comes.
    latest: Time,
}

impl Staging {
    pub(crate) fn new(
        store: &Shared<TensorStore>,
        total: &Arc<StagedTotal>,
        limits: StagingLimits,
    ) -> Self {
        Self {
            store: Arc::clone(store),
            total: Arc::clone(total),
            limits,
            pushes: Mutex::default(),
            refused: Mutex::default(),
            next_end_ns: AtomicU64::new(NEVER),
            seen_bytes: AtomicU64::new(0),
        }
    }

    /// Serves a call that came at `now` from who has this account.
    pub(crate) fn serve(
        &self,
        act: Act,
        call: GraphCall,
        (account, now): (Account, Time),
    ) -> Result<(), Status> {
        let GraphCall {
            step_id: number,
            feeds,
            ..
        } = call;
        check_shape(act, &call.fetches, &feeds)?;
        match act {
            Act::Stage if feeds.is_empty() => self.begin(number, now),
            Act::Stage => self.add(number, feeds.into_vec(), (account, now)),
            Act::Commit => self.commit(number),
            Act::Discard => {
                // It may have ended before, as after a call that was refused.
                let push = self.remove(number);
                drop(push);
                Ok(())
            }
        }
    }

    fn begin(&self, number: u64, now: Time) -> Result<(), Status> {
        let mut pushes = self.lock();
        if pushes.contains_key(&number) {
            let text = format!("push {number} is staged on this connection already");
            return Err(Status::new(Code::AlreadyExists, text));
        }
        if pushes.len() >= self.limits.pushes_max {
            let text = format!(
                "this connection stages {} pushes already, as many as it may; commit or discard \
                 one of them first",
                pushes.len()
            );
            return Err(Status::new(Code::ResourceExhausted, text).because(Reason::Limit));
        }
        let mut push = Push {
            batches: Vec::new(),
            amount: Amount::default(),
            ends: now,
            latest: now + self.limits.life,
        };
        push.wait_from(now, self.limits.patience);
        pushes.insert(number, push);
        self.refusals().retain(|(ended, _)| *ended != number);
        self.note_end(&pushes);
        Ok(())
    }

    /// Adds tensors to a push, which is dropped if they are refused.
    fn add(
        &self,
        number: u64,
        feeds: Vec<(Text, Tensor)>,
        (account, now): (Account, Time),
    ) -> Result<(), Status> {
        self.extend(number, now)?;
        let admitted = Batch::admit(
            &self.store.load(),
            &self.total,
            account,
            feeds,
            &self.limits,
        );
        let added = match admitted {
            // What is copied is copied without the lock.
            Ok(batch) => self.append(number, batch.into_private()),
            Err(status) => Err(status),
        };
        if let Err(status) = &added {
            // Much memory may go back with it.
            let ended = self.remove(number);
            if ended.is_some() {
                self.note_refusal(number, status.clone());
            }
        }
        added
    }

    fn note_refusal(&self, number: u64, status: Status) {
        let mut refused = self.refusals();
        if refused.len() == REFUSALS_KEPT {
            refused.pop_front();
        }
        refused.push_back((number, status));
    }

    /// Lets a push wait from now on.
    fn extend(&self, number: u64, now: Time) -> Result<(), Status> {
        let mut pushes = self.lock();
        let push = (pushes.get_mut(&number)).ok_or_else(|| self.unknown(number))?;
        push.wait_from(now, self.limits.patience);
        self.note_end(&pushes);
        Ok(())
    }

    fn append(&self, number: u64, batch: Batch) -> Result<(), Status> {
        match self.lock().get_mut(&number) {
            Some(push) => push.append(batch),
            // It has ended meanwhile.
            None => return Err(self.unknown(number)),
        }
        Ok(())
    }

    fn commit(&self, number: u64) -> Result<(), Status> {
        let push = self.remove(number);
        let mut push = push.ok_or_else(|| self.unknown(number))?;
        let batches = push.batches.iter_mut();
        let tensors = batches.flat_map(|batch| std::mem::take(&mut batch.tensors));
        put_all(&self.store, tensors.collect())
    }

    fn remove(&self, number: u64) -> Option<Push> {
        let mut pushes = self.lock();
        let push = pushes.remove(&number);
        self.note_end(&pushes);
        push
    }

    /// When the next push is to be dropped, if nothing more comes. `None` if none is under way.
    pub(crate) fn next_end(&self) -> Option<Time> {
        let ns = self.next_end_ns.load(Ordering::Acquire);
        (ns != NEVER).then(|| Time::from_nanos(ns))
    }

    /// Takes out the pushes whose time is over. Much memory may go back with them. Within a frame
    /// of the connection, so many bytes of that have come: while more come, the next call may be
    /// on its way, and all wait on.
    pub(crate) fn expire(&self, now: Time, coming_bytes: Option<u64>) -> Vec<(u64, Push)> {
        let mut pushes = self.lock();
        if let Some(bytes) = coming_bytes
            && self.seen_bytes.swap(bytes, Ordering::Relaxed) != bytes
        {
            for push in pushes.values_mut() {
                push.wait_from(now, self.limits.patience);
            }
        }
        let expired = pushes.extract_if(|_, push| push.ends <= now).collect();
        self.note_end(&pushes);
        expired
    }

    fn note_end(&self, pushes: &HashMap<u64, Push, RandomState>) {
        let end = pushes.values().map(|push| push.ends).min();
        let ns = end.map_or(NEVER, Time::as_nanos);
        self.next_end_ns.store(ns, Ordering::Release);
    }

    fn unknown(&self, number: u64) -> Status {
        let refused = self.refusals();
        if let Some((_, status)) = refused.iter().rev().find(|(ended, _)| *ended == number) {
            return status.clone();
        }
        drop(refused);
        let StagingLimits { patience, life, .. } = self.limits;
        let text = format!(
            "no push {number} is staged on this connection: nobody has begun it here, or it has \
             ended, as it does with its connection, with a call that is refused, {patience:?} \
             after its last call, and {life:?}, with a second for each MiB, after its first; \
             begin it again"
        );
        Status::new(Code::NotFound, text)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Push, RandomState>> {
        self.pushes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refusals(&self) -> MutexGuard<'_, VecDeque<(u64, Status)>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Push {
    /// Lets it wait for its next call from now on, within its life.
    fn wait_from(&mut self, now: Time, patience: Duration) {
        self.ends = self.ends.max(now + patience).min(self.latest);
    }

    fn append(&mut self, batch: Batch) {
        let before_mib = self.amount.bytes / MIB;
        self.amount = self.amount.plus(batch.amount);
        let more_mib = self.amount.bytes / MIB - before_mib;
        self.latest = self.latest + Duration::from_secs(more_mib);
        self.batches.push(batch);
    }

    /// Why it ends.
    fn fault(&self) -> &'static str {
        match self.ends < self.latest {
            true => "its next call did not come in time",
            false => "it has lasted as long as a push may",
        }
    }
}

impl fmt::Display for Push {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.amount, self.fault())
    }
}

fn check_shape(act: Act, fetches: &[Text], feeds: &[(Text, Tensor)]) -> Result<(), Status> {
    let function = match act {
        Act::Stage => STORE_STAGE,
        Act::Commit => STORE_COMMIT,
        Act::Discard => STORE_DISCARD,
    };
    let text = if !fetches.is_empty() {
        format!("{function} returns nothing; fetch nothing")
    } else if act != Act::Stage && !feeds.is_empty() {
        format!("{function} takes no tensors; stage them with {STORE_STAGE} before")
    } else {
        return Ok(());
    };
    Err(Status::new(Code::InvalidArgument, text))
}

/// Refusals that a connection remembers.
const REFUSALS_KEPT: usize = 8;

/// The end of a push that there is none of.
const NEVER: u64 = u64::MAX;

const MIB: u64 = 1 << 20;
