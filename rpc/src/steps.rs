use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::{Code, Reason, Status};

/// Counts down the graph calls of each step, so that the step is cleaned up behind the last.
///
/// `ps_graph_count` of a StarRunGraph call says how many of them the step makes on this task: the first call
/// stores it, each call that finished counts down, and at zero the step's rendezvous is to be cleaned up. A
/// count of 0 belongs to calls outside of any step, which are not counted.
#[derive(Debug)]
pub struct StepCountdown {
    unfinished: HashMap<u64, i32, RandomState>,
    steps_max: usize,
}

impl StepCountdown {
    /// A countdown for at most `steps_max` steps at a time.
    pub fn new(steps_max: usize) -> Self {
        Self {
            unfinished: HashMap::default(),
            steps_max,
        }
    }

    /// A graph call of a step begins. Follow it with [`StepCountdown::finish`], however it ends, if it was
    /// accepted.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the count is negative, `RESOURCE_EXHAUSTED` if too many steps are unfinished.
    pub fn start(&mut self, step_id: u64, ps_graph_count: i32) -> Result<(), Status> {
        if ps_graph_count < 0 {
            return Err(Status::new(
                Code::InvalidArgument,
                format!(
                    "ps_graph_count is {ps_graph_count} in step {step_id}; send the number of graph calls of \
                     the step on this task, or 0 outside of steps"
                ),
            ));
        }
        if ps_graph_count == 0 || self.unfinished.contains_key(&step_id) {
            return Ok(());
        }
        if self.unfinished.len() >= self.steps_max {
            return Err(Status::new(
                Code::ResourceExhausted,
                format!(
                    "step {step_id} would be one more than the {} steps that may have graph calls to come; \
                     finish or clean up some first",
                    self.steps_max
                ),
            )
            .because(Reason::Limit));
        }
        self.unfinished.insert(step_id, ps_graph_count);
        Ok(())
    }

    /// A graph call of a step has finished, well or not. Returns true for the last of a step, once: now it is
    /// to be cleaned up.
    pub fn finish(&mut self, step_id: u64, ps_graph_count: i32) -> bool {
        if ps_graph_count == 0 {
            return false;
        }
        let Some(calls_left) = self.unfinished.get_mut(&step_id) else {
            return false;
        };
        *calls_left -= 1;
        if *calls_left > 0 {
            return false;
        }
        self.unfinished.remove(&step_id);
        true
    }

    /// Forgets a step that was cleaned up or aborted otherwise. Returns whether it was unfinished.
    pub fn remove(&mut self, step_id: u64) -> bool {
        self.unfinished.remove(&step_id).is_some()
    }

    /// Steps with graph calls to come.
    pub fn unfinished_steps(&self) -> usize {
        self.unfinished.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checklist_29_the_last_call_cleans_the_step_once() {
        let mut countdown = StepCountdown::new(8);
        // Side by side, and one behind the other, for each count.
        for count in 1..5 {
            for _ in 0..count {
                countdown.start(1, count).unwrap();
            }
            let cleanups: Vec<bool> = (0..count).map(|_| countdown.finish(1, count)).collect();
            assert_eq!(cleanups.iter().filter(|c| **c).count(), 1);
            assert_eq!(cleanups.last(), Some(&true));

            let cleanups = (0..count).filter(|_| {
                countdown.start(2, count).unwrap();
                countdown.finish(2, count)
            });
            assert_eq!(cleanups.count(), 1);
        }
        assert_eq!(countdown.unfinished_steps(), 0);
    }

    #[test]
    fn checklist_29_the_first_call_of_a_step_sets_the_count() {
        let mut countdown = StepCountdown::new(8);
        countdown.start(1, 2).unwrap();
        countdown.start(1, 99).unwrap();
        assert!(!countdown.finish(1, 2));
        assert!(countdown.finish(1, 99));
        assert!(!countdown.finish(1, 2));
    }

    #[test]
    fn calls_outside_of_steps_are_not_counted() {
        let mut countdown = StepCountdown::new(0);
        countdown.start(0, 0).unwrap();
        assert!(!countdown.finish(0, 0));
        assert_eq!(
            countdown.start(0, -1).unwrap_err().code,
            Code::InvalidArgument
        );
    }

    #[test]
    fn unfinished_steps_are_bounded_and_can_be_removed() {
        let mut countdown = StepCountdown::new(1);
        countdown.start(1, 2).unwrap();
        assert_eq!(
            countdown.start(2, 1).unwrap_err().code,
            Code::ResourceExhausted
        );
        assert!(countdown.remove(1));
        assert!(!countdown.remove(1));
        countdown.start(2, 1).unwrap();
    }
}
