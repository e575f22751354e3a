use std::collections::VecDeque;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::{Code, Reason, Status};

/// The steps that are over, as far as they are remembered.
#[derive(Debug)]
pub(super) struct ClosedSteps {
    endings: HashMap<i64, Ending, RandomState>,
    oldest_first: VecDeque<i64>,
    limit: usize,
}

/// How a step ended.
#[derive(Clone, Debug)]
pub(super) enum Ending {
    Aborted(Status),
    CleanedUp,
}

impl ClosedSteps {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            endings: HashMap::default(),
            oldest_first: VecDeque::new(),
            limit,
        }
    }

    /// The error for whatever comes late for this step; `None` if the step is not over. Only the
    /// look-up is inlined: it is part of each send and each receive.
    #[inline]
    pub(super) fn status(&self, step_id: i64) -> Option<Status> {
        let ending = self.endings.get(&step_id)?;
        Some(ending.status(step_id))
    }

    pub(super) fn contains(&self, step_id: i64) -> bool {
        self.endings.contains_key(&step_id)
    }

    /// Remembers an end. A second abort changes nothing, a cleanup follows an abort but not the
    /// reverse.
    pub(super) fn close(&mut self, step_id: i64, ending: Ending) {
        if self.limit == 0 {
            return;
        }
        if let Some(known) = self.endings.get_mut(&step_id) {
            if matches!(ending, Ending::CleanedUp) {
                *known = ending;
            }
            return;
        }
        if self.oldest_first.len() == self.limit
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            self.endings.remove(&oldest);
        }
        self.oldest_first.push_back(step_id);
        self.endings.insert(step_id, ending);
    }

    pub(super) fn len(&self) -> usize {
        self.oldest_first.len()
    }
}

impl Ending {
    #[cold]
    pub(super) fn status(&self, step_id: i64) -> Status {
        match self {
            Self::Aborted(status) => status.clone(),
            Self::CleanedUp => Status::new(
                Code::Aborted,
                format!("step {step_id} was cleaned up; use a new step id"),
            )
            .because(Reason::StepOver),
        }
    }
}
