//! The steps in which calls of gRPC peers wait for tensors.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use grpcxx_rpc::{Account, Code, Reason, Status, WaitingSteps};

use crate::limits::WAITING_STEPS_MAX;
use crate::lock::lock;

/// The steps by account. The engine takes these calls for its own, so each account gets its share
/// of the steps here.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting(Arc<Mutex<HashMap<Account, WaitingSteps>>>);

/// A call that may wait in a step, until this is dropped.
#[derive(Debug)]
pub(crate) struct Wait {
    waiting: Waiting,
    account: Account,
    step_id: i64,
}

impl Waiting {
    /// Lets a call wait in a step.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED`: calls of this account wait in as many other steps as they may.
    pub(crate) fn begin(&self, account: Account, step_id: i64) -> Result<Wait, Status> {
        let mut accounts = lock(&self.0);
        let steps = accounts.entry(account).or_default();
        if !steps.may_begin(step_id, WAITING_STEPS_MAX) {
            let text = format!(
                "calls from this address wait in {WAITING_STEPS_MAX} steps, as many as are allowed"
            );
            return Err(Status::new(Code::ResourceExhausted, text).because(Reason::Limit));
        }
        steps.begin(step_id);
        Ok(Wait {
            waiting: self.clone(),
            account,
            step_id,
        })
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let mut accounts = lock(&self.waiting.0);
        if let Some(steps) = accounts.get_mut(&self.account) {
            steps.end(self.step_id);
            if steps.is_empty() {
                accounts.remove(&self.account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_waits_in_so_many_steps_and_others_in_more() {
        let account = |last| Account::of([10, 0, 0, last].into());
        let waiting = Waiting::default();
        let mut waits: Vec<Wait> = (0..WAITING_STEPS_MAX as i64)
            .map(|step_id| waiting.begin(account(1), step_id).unwrap())
            .collect();
        assert!(waiting.begin(account(1), -1).is_err());
        assert!(
            waiting.begin(account(1), 7).is_ok(),
            "a step that it waits in"
        );
        assert!(waiting.begin(account(2), -1).is_ok());
        waits.pop();
        assert!(waiting.begin(account(1), -1).is_ok());
        drop(waits);
        assert!(lock(&waiting.0).is_empty());
    }
}
