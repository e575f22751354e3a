//! The steps of a task, as its own program sees them.

use std::time::Duration;

use grpcxx_rpc::{KeyList, Request, Status, Tensor, Text, home_shard};

use super::Engine;
use crate::call::Call;
use crate::client::Peer;
use crate::command::{Command, Keys, Taken};

impl Engine {
    /// Puts a tensor into a step, where one receiver will find it. A key that is taken, or a step
    /// that was aborted, drops the tensor and counts it
    /// ([`Counters::sends_refused`](crate::Counters::sends_refused)).
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the key is not a rendezvous key, `NOT_FOUND` or `ABORTED` if it does
    /// not name this task's device in this incarnation, `RESOURCE_EXHAUSTED` if the shard's inbox
    /// is full.
    pub fn send(&self, step_id: i64, key: Text, mut tensor: Tensor) -> Result<(), Status> {
        self.shared.task.check_key(&key)?;
        // Here, so that no shard has to copy it.
        tensor.make_private();
        self.order(
            step_id,
            Command::Send {
                step_id,
                key,
                tensor,
                origin: None,
            },
        )
    }

    /// Receives tensors of this task's own steps, as a peer would with the same keys. They go back
    /// into their step if the call is dropped before it has handed them over.
    pub fn receive(&self, step_id: i64, keys: Vec<Text>, timeout: Option<Duration>) -> Call {
        let keys = KeyList::from(keys);
        let request = Request::FuseRecvTensor {
            step_id,
            keys: keys.clone(),
        };
        let call = self.client.call(&self.own_peer(step_id), request, timeout);
        if self.shared.service.is_some() {
            // A service answers with tensors that no step had.
            return call;
        }
        let keys = Keys::Many(keys);
        call.taking(Taken { step_id, keys })
    }

    /// This task as a peer of itself, for calls that concern a step: they begin on its home shard.
    pub fn own_peer(&self, step_id: i64) -> Peer {
        self.client.own_peer(step_id)
    }

    /// Fails all receives of a step, those that wait and those to come, with `status`.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if the shard's inbox is full.
    pub fn abort_step(&self, step_id: i64, status: Status) -> Result<(), Status> {
        self.order(
            step_id,
            Command::Abort {
                step_id,
                status,
                origin: None,
            },
        )
    }

    /// Removes a step with all its tensors; receives that wait fail with `ABORTED`.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if the shard's inbox is full.
    pub fn cleanup_step(&self, step_id: i64) -> Result<(), Status> {
        self.order(
            step_id,
            Command::Cleanup {
                step_id,
                origin: None,
            },
        )
    }

    /// Fails all receives of all steps with `status`, those that wait and those to come.
    pub fn abort_all_steps(&self, status: &Status) {
        for shard in 0..self.shared.mailboxes.len() {
            let status = status.clone();
            self.shared
                .mailboxes
                .deliver(shard, Command::AbortAll { status });
        }
    }

    fn order(&self, step_id: i64, command: Command) -> Result<(), Status> {
        let home = home_shard(step_id, self.shared.mailboxes.len());
        self.shared
            .mailboxes
            .try_deliver(home, command)
            .map_err(|_| self.shared.mailboxes.refusal(home))
    }
}
