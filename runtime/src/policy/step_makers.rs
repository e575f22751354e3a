//! Which address has made which step, where that decides who may end it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use grpcxx_rpc::{Account, Places};

/// The steps that peers have made by a graph call, each with the address of that peer, whether it
/// is known to belong to the cluster or not: else a stranger that calls second would be the maker.
#[derive(Debug, Default)]
pub(super) struct StepMakers {
    made: Mutex<Made>,
    /// Whether there has been any step, so that the end of one costs nothing where there was none.
    has_steps: AtomicBool,
}

#[derive(Debug)]
struct Made {
    by_step: HashMap<i64, Step, RandomState>,
    /// One for each step: those that are over give way first, then those whose last graph call is
    /// longest ago.
    places: Places<i64, (bool, u64)>,
    /// Calls and ends so far, which are the time of the places.
    noted: u64,
}

#[derive(Debug)]
struct Step {
    maker: Account,
    place: u64,
    is_over: bool,
}

/// Who has made a step, as seen by a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Maker {
    Itself,
    Another,
    Unknown,
}

/// What a graph call is to its step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Noted {
    /// Another peer has made the step.
    pub(super) is_of_another: bool,
    /// A step that was not over is not remembered any more.
    pub(super) has_forgotten: bool,
}

impl StepMakers {
    /// A peer makes a graph call in a step: it has made the step if nobody has before.
    pub(super) fn note(&self, peer: Account, step_id: i64) -> Noted {
        self.has_steps.store(true, Ordering::Relaxed);
        let mut made = self.lock();
        let made = &mut *made;
        made.noted += 1;
        if let Some(step) = made.by_step.get_mut(&step_id) {
            if step.maker == peer {
                step.is_over = false;
                made.places.begin_use(step.place);
                made.places.end_use(step.place, (true, made.noted));
            }
            let is_of_another = step.maker != peer;
            return Noted {
                is_of_another,
                ..Noted::default()
            };
        }
        // No place is in use for longer than a moment, so one can always give way.
        let Ok(given) = made.places.take(peer, step_id, (true, made.noted)) else {
            return Noted::default();
        };
        let oldest = given.gave_way.and_then(|step| made.by_step.remove(&step));
        let step = Step {
            maker: peer,
            place: given.place,
            is_over: false,
        };
        made.by_step.insert(step_id, step);
        Noted {
            is_of_another: false,
            has_forgotten: oldest.is_some_and(|step| !step.is_over),
        }
    }

    /// Who has made a step.
    pub(super) fn maker(&self, peer: Account, step_id: i64) -> Maker {
        match self.lock().by_step.get(&step_id) {
            Some(step) if step.maker == peer => Maker::Itself,
            Some(_) => Maker::Another,
            None => Maker::Unknown,
        }
    }

    /// A step is over. Its maker is remembered for a while: it may end the step a second time.
    pub(super) fn end(&self, step_id: i64) {
        if !self.has_steps.load(Ordering::Relaxed) {
            return;
        }
        let mut made = self.lock();
        let made = &mut *made;
        made.noted += 1;
        if let Some(step) = made.by_step.get_mut(&step_id) {
            step.is_over = true;
            made.places.begin_use(step.place);
            made.places.end_use(step.place, (false, made.noted));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Made {
    fn default() -> Self {
        Self {
            by_step: HashMap::default(),
            places: Places::new(STEPS_MAX, SHARE_PERCENT),
            noted: 0,
        }
    }
}

/// Most steps whose maker is remembered.
pub(super) const STEPS_MAX: usize = 16_384;

/// The part of them that one address may have made, in percent.
const SHARE_PERCENT: u8 = 50;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn peer(last: u8) -> Account {
        Account::of([10, 0, 0, last].into())
    }

    #[test]
    fn a_step_is_of_who_calls_in_it_first() {
        let makers = StepMakers::default();
        assert_eq!(makers.maker(peer(1), 7), Maker::Unknown);
        assert_eq!(makers.note(peer(1), 7), Noted::default());
        assert!(makers.note(peer(2), 7).is_of_another);
        assert_eq!(makers.maker(peer(1), 7), Maker::Itself);
        assert_eq!(makers.maker(peer(2), 7), Maker::Another);
        makers.end(7);
        assert_eq!(makers.maker(peer(1), 7), Maker::Itself);
    }

    #[test]
    fn steps_that_are_over_are_forgotten_first_and_nobody_fills_all() {
        let makers = StepMakers::default();
        let share = STEPS_MAX as i64 / 2;
        assert_eq!(makers.note(peer(2), -1), Noted::default());
        for step in 0..share {
            assert!(!makers.note(peer(1), step).has_forgotten, "{step}");
        }
        makers.end(5);
        assert!(!makers.note(peer(1), share).has_forgotten);
        assert_eq!(makers.maker(peer(1), 5), Maker::Unknown);
        assert!(makers.note(peer(1), share + 1).has_forgotten);
        assert_eq!(makers.maker(peer(1), 0), Maker::Unknown);
        assert_eq!(makers.maker(peer(1), 1), Maker::Itself);
        assert_eq!(makers.maker(peer(2), -1), Maker::Itself);
    }
}
