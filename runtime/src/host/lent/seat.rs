//! What the lock of a shard that is lent guards.

use grpcxx_transport::Time;

use super::dozing::VainWakes;
use super::solitude::Solitude;
use crate::host::shard_loop::{Dead, ShardLoop};
use crate::idle::Idle;

/// What the lock guards.
pub(super) struct Seat<L> {
    /// None once its owner keeps it for good.
    pub(super) shard: Option<L>,
    /// Of its owner.
    pub(super) idle: Idle,
    /// Of threads that wait: what pays for one end of calls does not for the other.
    pub(super) borrowers_idle: Idle,
    pub(super) hold: Hold,
    /// When the owner wakes by itself.
    pub(super) wakes_at: Option<Time>,
    /// When the owner woke up, if no thread has borrowed the shard since.
    pub(super) woke_at: Option<Time>,
    pub(super) vain_wakes: VainWakes,
    pub(super) solitude: Solitude,
    /// Events that the owner has had since it woke up.
    pub(super) events: usize,
    /// What a borrower's turn ended in.
    pub(super) death: Option<Dead<()>>,
}

/// Who has the shard.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// Whoever turns it.
    Turned,
    /// Nobody: the owner sleeps, and the shard wakes it.
    Asleep,
    /// Nobody: a thread has just given it back, and is likely to come again. The owner sleeps, and
    /// looks after it when the alarm has gone off and nobody has come.
    Dozing,
    /// The thread that wants it: the owner sleeps, and only the bell wakes it.
    Handed,
}

impl<L: ShardLoop> Seat<L> {
    /// Of a shard that its owner turns.
    pub(super) fn new(shard: L, idle: Idle) -> Self {
        Self {
            shard: Some(shard),
            borrowers_idle: idle.clone(),
            idle,
            hold: Hold::Turned,
            wakes_at: None,
            woke_at: None,
            vain_wakes: VainWakes::default(),
            solitude: Solitude::default(),
            events: 0,
            death: None,
        }
    }

    pub(super) fn shard(&mut self) -> &mut L {
        self.shard.as_mut().expect("its owner has not kept it yet")
    }

    /// Whether nobody turns it or is about to.
    pub(super) fn has_no_thread(&self) -> bool {
        matches!(self.hold, Hold::Asleep | Hold::Dozing)
    }

    /// Whether a thread that waits may take it.
    pub(super) fn is_free(&self) -> bool {
        self.hold != Hold::Turned
    }
}
