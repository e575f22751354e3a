//! Pushes of several calls: their tensors wait beside the store until one call makes all of them
//! visible at once.

mod client;
#[cfg(all(test, not(loom)))]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;
use grpcxx_rpc::{Code, GraphCall, Reason, Status, Tensor, TensorStore, Text};
use grpcxx_transport::Time;

pub use self::client::StagedPush;
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

/// What all connections of an engine have staged together.
#[derive(Debug, Default)]
pub(crate) struct StagedTotal {
    tensors: AtomicUsize,
    bytes: AtomicU64,
}

impl StagedTotal {
    pub(crate) fn tensors(&self) -> usize {
        self.tensors.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// The pushes that one connection stages. All of them are dropped with it.
#[derive(Debug)]
pub(crate) struct Staging {
    store: Shared<TensorStore>,
    total: Arc<StagedTotal>,
    /// Most pushes at once.
    pushes_max: usize,
    /// How long a push waits for its next call.
    patience: Duration,
    pushes: Mutex<HashMap<u64, Push, RandomState>>,
}

/// A push that is staged.
#[derive(Debug)]
pub(crate) struct Push {
    tensors: Vec<(Text, Tensor)>,
    /// What it has taken of the total.
    counted: usize,
    bytes: u64,
    total: Arc<StagedTotal>,
    /// When it is dropped, unless another call comes.
    ends: Time,
}

impl Staging {
    pub(crate) fn new(
        store: &Shared<TensorStore>,
        total: &Arc<StagedTotal>,
        (pushes_max, patience): (usize, Duration),
    ) -> Self {
        Self {
            store: Arc::clone(store),
            total: Arc::clone(total),
            pushes_max,
            patience,
            pushes: Mutex::default(),
        }
    }

    /// Serves a call that came at `now`.
    pub(crate) fn serve(&self, act: Act, call: GraphCall, now: Time) -> Result<(), Status> {
        let GraphCall {
            step_id: number,
            feeds,
            ..
        } = call;
        check_shape(act, &call.fetches, &feeds)?;
        match act {
            Act::Stage if feeds.is_empty() => self.begin(number, now),
            Act::Stage => self.add(number, feeds, now),
            Act::Commit => self.commit(number),
            Act::Discard => {
                // It may have ended before, as after a call that was refused.
                let push = self.lock().remove(&number);
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
        if pushes.len() >= self.pushes_max {
            let text = format!(
                "this connection stages {} pushes already, as many as it may; commit or discard \
                 one of them first",
                pushes.len()
            );
            return Err(Status::new(Code::ResourceExhausted, text).because(Reason::Limit));
        }
        let push = Push {
            tensors: Vec::new(),
            counted: 0,
            bytes: 0,
            total: Arc::clone(&self.total),
            ends: now + self.patience,
        };
        pushes.insert(number, push);
        Ok(())
    }

    /// Adds tensors to a push, which is dropped if they are refused.
    fn add(&self, number: u64, feeds: Vec<(Text, Tensor)>, now: Time) -> Result<(), Status> {
        let store = self.store.load();
        let mut pushes = self.lock();
        let push = (pushes.get_mut(&number)).ok_or_else(|| self.unknown(number))?;
        push.ends = push.ends.max(now + self.patience);
        let added = push.add(&store, feeds);
        let refused = match added {
            Ok(()) => None,
            Err(_) => pushes.remove(&number),
        };
        // Much memory may go back with it.
        drop((pushes, refused));
        added
    }

    fn commit(&self, number: u64) -> Result<(), Status> {
        let push = self.lock().remove(&number);
        let mut push = push.ok_or_else(|| self.unknown(number))?;
        put_all(&self.store, std::mem::take(&mut push.tensors))
    }

    /// When the next push is to be dropped, if nothing more comes.
    pub(crate) fn next_end(&self) -> Option<Time> {
        self.lock().values().map(|push| push.ends).min()
    }

    /// Takes out the pushes whose time is over. Much memory may go back with them.
    pub(crate) fn expire(&self, now: Time) -> Vec<(u64, Push)> {
        let mut pushes = self.lock();
        pushes.extract_if(|_, push| push.ends <= now).collect()
    }

    fn unknown(&self, number: u64) -> Status {
        let text = format!(
            "no push {number} is staged on this connection: nobody has begun it here, or it has \
             ended, as it does with its connection, with a call that is refused, and {:?} after \
             its last call; begin it again",
            self.patience
        );
        Status::new(Code::NotFound, text)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Push, RandomState>> {
        self.pushes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Push {
    /// Takes tensors in that the store would take.
    fn add(&mut self, store: &TensorStore, feeds: Vec<(Text, Tensor)>) -> Result<(), Status> {
        for (name, tensor) in &feeds {
            store.check(name, tensor)?;
        }
        let bytes: u64 = feeds.iter().map(|(_, t)| t.data.len() as u64).sum();
        // Counted before it is compared, so that of two that come at once none takes too much.
        let tensors = self.total.tensors.fetch_add(feeds.len(), Ordering::Relaxed) + feeds.len();
        let all_bytes = self.total.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let admitted = store.check_staged(tensors, all_bytes);
        if admitted.is_err() {
            self.total.tensors.fetch_sub(feeds.len(), Ordering::Relaxed);
            self.total.bytes.fetch_sub(bytes, Ordering::Relaxed);
            return admitted;
        }
        self.counted += feeds.len();
        self.bytes += bytes;
        for (name, mut tensor) in feeds {
            tensor.make_private();
            self.tensors.push((name, tensor));
        }
        Ok(())
    }
}

impl fmt::Display for Push {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tensors of {} bytes in all", self.counted, self.bytes)
    }
}

impl Drop for Push {
    fn drop(&mut self) {
        self.total
            .tensors
            .fetch_sub(self.counted, Ordering::Relaxed);
        self.total.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
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
