//! What the arenas of a process were lent of the machine's memory, and what may be lent now.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Shortage;

/// Who lends, and to whom.
pub(super) struct Ledger {
    pub(super) usable_bytes: u64,
    ask: Box<dyn Fn() -> Option<u64> + Send + Sync>,
    lent: Mutex<Lent>,
    /// Somebody who was refused has given memory back.
    returned: Condvar,
}

/// What was lent.
#[derive(Default)]
pub(super) struct Lent {
    pub(super) arenas: u64,
    /// All that was ever lent, also what came back.
    granted_bytes: u64,
    /// What the system said last. Forgotten when memory comes back.
    answer: Option<Answer>,
    /// What loans still need for payload that they have a part of, in the order in which they
    /// began.
    claims: BTreeMap<u64, Claim>,
    last_place: u64,
    /// Loans that were refused, and whose memory is on its way back.
    returning: usize,
}

/// What the system has said.
#[derive(Clone, Copy)]
pub(super) struct Answer {
    /// When it was asked.
    at: Instant,
    free_bytes: u64,
    /// What had been lent then: all since is to be taken off what was free.
    granted_before: u64,
}

/// When a payload began, among those of all loans.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    number: u64,
    /// The length of the payload, which tells it from others of its loan.
    pub(super) whole_bytes: u64,
}

/// What a loan still needs.
struct Claim {
    rest_bytes: u64,
    held_bytes: u64,
    at: Instant,
}

/// What may be lent now, and why it is no more.
pub(super) struct Room {
    pub(super) allowed_bytes: u64,
    free_bytes: u64,
    kept_bytes: u64,
}

impl Ledger {
    pub(super) fn new(
        usable_bytes: u64,
        ask: impl Fn() -> Option<u64> + Send + Sync + 'static,
    ) -> Self {
        Self {
            usable_bytes,
            ask: Box::new(ask),
            lent: Mutex::default(),
            returned: Condvar::new(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Lent> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ledger with what the system says is free, which it is asked for if its last answer is
    /// old. It reads files, so nobody waits for that.
    pub(super) fn lock_answered(&self) -> (MutexGuard<'_, Lent>, Answer) {
        let lent = self.lock();
        if let Some(answer) = lent.answer
            && answer.at.elapsed() < ANSWER_LASTS
        {
            return (lent, answer);
        }
        let (at, granted_before) = (Instant::now(), lent.granted_bytes);
        drop(lent);
        let free_bytes = (self.ask)().unwrap_or(0);
        let mut lent = self.lock();
        let mut answer = Answer {
            at,
            free_bytes,
            granted_before,
        };
        // Another thread may have asked after this one.
        if let Some(other) = lent.answer
            && other.at > at
        {
            answer = other;
        }
        lent.answer = Some(answer);
        (lent, answer)
    }

    /// Waits until nobody is on the way to give memory back.
    pub(super) fn await_returns(&self) {
        let is_returning = |lent: &mut Lent| lent.returning > 0;
        let waited = (self.returned).wait_timeout_while(self.lock(), RETURN_TIME, is_returning);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn end_return(&self) {
        let mut lent = self.lock();
        lent.returning -= 1;
        lent.note_returned();
        drop(lent);
        self.returned.notify_all();
    }
}

impl Lent {
    /// What may be lent beside `kept_bytes`, to a loan with this place: payload that began earlier
    /// has more claim to it.
    pub(super) fn room(&self, answer: Answer, kept_bytes: u64, place: Option<Place>) -> Room {
        let granted_bytes = self.granted_bytes - answer.granted_before;
        let number = place.map_or(0, |place| place.number);
        let earlier = self.claims.range(..number).map(|(_, claim)| claim.bytes());
        let kept_bytes = kept_bytes.saturating_add(earlier.sum());
        let free_bytes = answer.free_bytes.saturating_sub(granted_bytes);
        Room {
            allowed_bytes: free_bytes.saturating_sub(kept_bytes),
            free_bytes,
            kept_bytes,
        }
    }

    pub(super) fn grant(&mut self, bytes: u64) {
        self.granted_bytes += bytes;
    }

    /// Memory has come back, so more is free than the system said.
    pub(super) fn note_returned(&mut self) {
        self.answer = None;
    }

    pub(super) fn begin_return(&mut self) {
        self.returning += 1;
    }

    /// The place of a loan: the one that it has while its payload comes, or the last one.
    pub(super) fn place(&mut self, has: Option<Place>, whole_bytes: u64) -> Place {
        if let Some(place) = has {
            let claim = self.claims.get(&place.number);
            if claim.is_some_and(Claim::is_fresh) {
                return place;
            }
            self.claims.remove(&place.number);
        }
        self.last_place += 1;
        Place {
            number: self.last_place,
            whole_bytes,
        }
    }

    pub(super) fn claim(&mut self, place: Place, rest_bytes: u64, held_bytes: u64) {
        let claim = Claim {
            rest_bytes,
            held_bytes,
            at: Instant::now(),
        };
        self.claims.insert(place.number, claim);
    }

    pub(super) fn unclaim(&mut self, place: Place) {
        self.claims.remove(&place.number);
    }
}

impl Claim {
    /// What is kept for it: no more than it holds, so that who announces much and sends little
    /// keeps nobody out, and nothing for who has stopped.
    fn bytes(&self) -> u64 {
        match self.is_fresh() {
            true => self.rest_bytes.min(self.held_bytes),
            false => 0,
        }
    }

    fn is_fresh(&self) -> bool {
        self.at.elapsed() < CLAIM_LASTS
    }
}

impl Room {
    pub(super) fn shortage(&self) -> Shortage {
        Shortage::Memory {
            allowed_bytes: self.allowed_bytes,
            free_bytes: self.free_bytes,
            kept_bytes: self.kept_bytes,
        }
    }
}

/// So long an answer of the system holds, with what was lent since taken off: neither a stream of
/// growing payload nor one of refused frames is to make shards read files all the time.
pub(super) const ANSWER_LASTS: Duration = Duration::from_millis(10);

/// So long memory is kept for payload that does not grow.
const CLAIM_LASTS: Duration = Duration::from_secs(1);

/// The longest that one who would be refused waits for the memory of another who was.
const RETURN_TIME: Duration = Duration::from_millis(100);
