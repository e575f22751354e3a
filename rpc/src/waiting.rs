//! The steps in which requests of somebody wait.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// How many requests of somebody wait in each step.
///
/// A step that exists only because a request waits in it is there at its expense. So the number of
/// steps is what a share is made of, and not that of requests: a worker may wait for hundreds of
/// tensors of its step.
#[derive(Debug, Default)]
pub struct WaitingSteps(HashMap<i64, usize, RandomState>);

impl WaitingSteps {
    /// Whether a request may wait in a step without more than `steps_max` being waited in.
    #[inline]
    pub fn may_begin(&self, step_id: i64, steps_max: usize) -> bool {
        self.0.len() < steps_max || self.0.contains_key(&step_id)
    }

    /// A request begins to wait. Returns whether it is the first one in its step.
    pub fn begin(&mut self, step_id: i64) -> bool {
        let waiting = self.0.entry(step_id).or_insert(0);
        *waiting += 1;
        *waiting == 1
    }

    /// A request waits no longer. Returns whether it was the last one in its step.
    pub fn end(&mut self, step_id: i64) -> bool {
        let Some(waiting) = self.0.get_mut(&step_id) else {
            return false;
        };
        *waiting -= 1;
        let is_last = *waiting == 0;
        if is_last {
            self.0.remove(&step_id);
        }
        is_last
    }

    /// How many steps there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_counts_once_however_many_wait_in_it() {
        let mut steps = WaitingSteps::default();
        assert!(steps.may_begin(1, 1));
        assert!(steps.begin(1) && !steps.begin(1));
        assert!(steps.may_begin(1, 1) && !steps.may_begin(2, 1));
        assert_eq!(steps.len(), 1);
        assert!(!steps.end(1) && steps.end(1) && !steps.end(1));
        assert!(steps.is_empty());
    }
}
