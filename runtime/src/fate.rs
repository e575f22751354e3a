//! How an engine dies: what killed its first shard, and who is told.

use std::fmt;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use grpcxx_rpc::{Code, Reason, Status};

use crate::blame::survive;
use crate::host::HostError;

/// Whether an engine died, and of what. Steps and connections of a dead shard are lost for good, so
/// the engine ends as a whole.
#[derive(Default)]
pub(crate) struct Fate {
    death: OnceLock<HostError>,
    witnesses: Mutex<Vec<Witness>>,
}

/// Hears of the death.
type Witness = Box<dyn FnOnce(&HostError) + Send>;

impl Fate {
    /// Notes a death. Returns false, and changes nothing, if the engine was dead already.
    pub(crate) fn note(&self, error: &HostError) -> bool {
        self.death.set(error.clone()).is_ok()
    }

    /// Tells the witnesses of the death.
    pub(crate) fn tell(&self) {
        let Some(error) = self.death.get() else {
            return;
        };
        let witnesses = std::mem::take(&mut *self.witnesses());
        for tell in witnesses {
            survive("a witness of the engine's death", || tell(error));
        }
    }

    /// Tells `witness` of the death, now if it was before.
    pub(crate) fn witness(&self, witness: Witness) {
        let mut witnesses = self.witnesses();
        match self.death.get() {
            Some(error) => {
                drop(witnesses);
                witness(error);
            }
            None => witnesses.push(witness),
        }
    }

    /// Why calls of this process end, if the engine is dead.
    pub(crate) fn death(&self) -> Option<Status> {
        let error = self.death.get()?;
        let text = format!("{error}; the engine is dead, start the process again");
        Some(Status::new(Code::Internal, text).because(Reason::ShardDied))
    }

    /// Whether the engine is dead.
    #[inline]
    pub(crate) fn is_dead(&self) -> bool {
        self.death.get().is_some()
    }

    /// Why a call ended with the engine.
    pub(crate) fn status(&self) -> Status {
        self.death().unwrap_or_else(stopped)
    }

    /// Why a call does not begin: the engine has ended.
    pub(crate) fn refusal(&self) -> Status {
        self.death().unwrap_or_else(|| {
            Status::new(Code::Unavailable, "the engine has stopped").because(Reason::Stopping)
        })
    }

    fn witnesses(&self) -> MutexGuard<'_, Vec<Witness>> {
        self.witnesses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fate").field(&self.death.get()).finish()
    }
}

/// Why a call ends whose engine is gone.
pub(crate) fn stopped() -> Status {
    Status::new(
        Code::Unavailable,
        "the engine stopped before the call ended",
    )
    .because(Reason::Stopping)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn panicked(message: &str) -> HostError {
        HostError::Panicked {
            name: "grpcxx-1".to_owned(),
            code: "a future",
            message: message.to_owned(),
        }
    }

    #[test]
    fn each_witness_hears_of_the_first_death_once() {
        let fate = Fate::default();
        assert_eq!(fate.status().reason, Reason::Stopping);
        let heard = Arc::new(AtomicUsize::new(0));
        let witness = || -> Witness {
            let heard = Arc::clone(&heard);
            Box::new(move |error| {
                assert_eq!(*error, panicked("first"));
                heard.fetch_add(1, Ordering::Relaxed);
            })
        };
        fate.witness(Box::new(|_| panic!("a witness must not stop the others")));
        fate.witness(witness());
        assert!(fate.note(&panicked("first")));
        assert!(!fate.note(&panicked("second")));
        fate.tell();
        fate.tell();
        assert_eq!(heard.load(Ordering::Relaxed), 1);
        fate.witness(witness());
        assert_eq!(heard.load(Ordering::Relaxed), 2);
        let status = fate.status();
        assert_eq!(status.reason, Reason::ShardDied);
        assert_eq!(
            status.message,
            "shard `grpcxx-1` panicked in a future: first; the engine is dead, start the process again"
        );
    }
}
