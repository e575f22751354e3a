//! The graph calls of each step, counted down so that the last one ends the step.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::{Account, Places};

/// Counts down the graph calls of each step, so that the step is cleaned up behind the last.
///
/// `ps_graph_count` of a StarRunGraph call says how many of them the step makes on this task: the
/// first call stores it, each call that finished counts down, and at zero the step's rendezvous is
/// to be cleaned up. A count of 0 belongs to calls outside of any step, which are not counted.
///
/// A worker that crashes leaves steps behind whose calls do not come any more. Where there are too
/// many of them, the one is given up that was not counted for longest.
#[derive(Debug)]
pub struct StepCountdown {
    unfinished: HashMap<u64, Unfinished, RandomState>,
    /// One for each unfinished step.
    places: Places<u64, u64>,
    /// Calls counted so far, which is the time of the places.
    counted: u64,
}

#[derive(Debug)]
struct Unfinished {
    calls_left: i32,
    place: u64,
}

/// What the end of a graph call means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// It was the last of its step, which is to be cleaned up.
    pub is_last: bool,
    /// Another step is not counted any more.
    pub has_given_up: bool,
}

impl StepCountdown {
    /// A countdown for at most `steps_max` steps at a time, of which one account has a part.
    pub fn new(steps_max: usize) -> Self {
        Self {
            unfinished: HashMap::default(),
            places: Places::new(steps_max.max(1), SHARE_PERCENT),
            counted: 0,
        }
    }

    /// A graph call of a step has finished, well or not.
    pub fn count(&mut self, step_id: u64, ps_graph_count: i32, account: Account) -> Counted {
        self.counted += 1;
        let mut counted = Counted::default();
        match self.unfinished.get_mut(&step_id) {
            _ if ps_graph_count <= 0 => {}
            Some(unfinished) if unfinished.calls_left > 1 => {
                unfinished.calls_left -= 1;
                self.places.begin_use(unfinished.place);
                self.places.end_use(unfinished.place, self.counted);
            }
            Some(_) => counted.is_last = self.remove(step_id),
            None if ps_graph_count == 1 => counted.is_last = true,
            None => counted.has_given_up = self.insert(step_id, ps_graph_count - 1, account),
        }
        counted
    }

    /// Forgets a step that was cleaned up or aborted otherwise. Returns whether it was unfinished.
    pub fn remove(&mut self, step_id: u64) -> bool {
        let Some(unfinished) = self.unfinished.remove(&step_id) else {
            return false;
        };
        self.places.release(unfinished.place);
        true
    }

    /// Steps with graph calls to come.
    pub fn unfinished_steps(&self) -> usize {
        self.unfinished.len()
    }

    /// Adds a step. Returns whether another one is given up for it.
    fn insert(&mut self, step_id: u64, calls_left: i32, account: Account) -> bool {
        // No place is in use, so one can always give way.
        let Ok(given) = self.places.take(account, step_id, self.counted) else {
            return true;
        };
        let place = given.place;
        self.unfinished
            .insert(step_id, Unfinished { calls_left, place });
        let given_up = given.gave_way.map(|oldest| self.unfinished.remove(&oldest));
        given_up.is_some()
    }
}

/// The part of the steps that calls of one account may leave unfinished, in percent.
const SHARE_PERCENT: u8 = 50;

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: Counted = Counted {
        is_last: true,
        has_given_up: false,
    };
    const MORE: Counted = Counted {
        is_last: false,
        has_given_up: false,
    };
    const ONE_GIVEN_UP: Counted = Counted {
        is_last: false,
        has_given_up: true,
    };

    fn account(last: u8) -> Account {
        Account::of([10, 0, 0, last].into())
    }

    #[test]
    fn checklist_29_the_last_call_cleans_the_step_once() {
        let mut countdown = StepCountdown::new(8);
        for count in 1..5 {
            let counted: Vec<Counted> = (0..count)
                .map(|_| countdown.count(1, count, account(1)))
                .collect();
            let (last, others) = counted.split_last().unwrap();
            assert_eq!(*last, LAST);
            assert!(others.iter().all(|counted| *counted == MORE));
        }
        assert_eq!(countdown.unfinished_steps(), 0);
    }

    #[test]
    fn checklist_29_the_first_call_of_a_step_sets_the_count() {
        let mut countdown = StepCountdown::new(8);
        assert_eq!(countdown.count(1, 2, account(1)), MORE);
        assert_eq!(countdown.count(1, 99, account(2)), LAST);
        assert_eq!(countdown.count(1, 2, account(1)), MORE);
        assert_eq!(countdown.count(1, 1, account(1)), LAST);
    }

    #[test]
    fn calls_outside_of_steps_are_not_counted() {
        let mut countdown = StepCountdown::new(1);
        assert_eq!(countdown.count(0, 0, account(1)), MORE);
        assert_eq!(countdown.count(0, -1, account(1)), MORE);
        assert_eq!(countdown.unfinished_steps(), 0);
    }

    #[test]
    fn abandoned_steps_do_not_end_the_cleanup_of_others() {
        let mut countdown = StepCountdown::new(8);
        // Four by a worker that crashed, then without end by somebody else.
        for step in 0..4 {
            assert_eq!(countdown.count(step, 2, account(1)), MORE);
        }
        for step in 100..200 {
            let expected = if step < 104 { MORE } else { ONE_GIVEN_UP };
            assert_eq!(countdown.count(step, 2, account(2)), expected, "{step}");
        }
        assert_eq!(countdown.unfinished_steps(), 8);
        // Those of the first are still counted, and an honest step of a third ends.
        assert_eq!(countdown.count(0, 2, account(1)), LAST);
        assert_eq!(countdown.count(7, 3, account(3)), MORE);
        assert_eq!(countdown.count(8, 2, account(3)), ONE_GIVEN_UP);
        assert_eq!(countdown.count(7, 3, account(3)), MORE);
        assert_eq!(countdown.count(7, 3, account(3)), LAST);
        assert!(countdown.remove(8) && !countdown.remove(8));
        assert_eq!(countdown.unfinished_steps(), countdown.places.len());
    }

    #[test]
    fn a_step_that_goes_on_is_not_the_oldest() {
        let mut countdown = StepCountdown::new(4);
        for step in 0..2 {
            countdown.count(step, 3, account(1));
        }
        countdown.count(0, 3, account(1));
        assert_eq!(countdown.count(2, 3, account(1)), ONE_GIVEN_UP);
        assert_eq!(countdown.count(0, 3, account(1)), LAST);
        assert_eq!(countdown.unfinished_steps(), 1);
    }
}
