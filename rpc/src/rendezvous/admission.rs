//! What a rendezvous takes in, and why it refuses the rest.

use super::Rendezvous;
use super::entries::ENTRIES_MAX;
use super::table::{Place, WAITS_MAX};
use crate::{Code, Reason, Status, Tensor, Text};

/// What is let in, and with which status the rest is refused.
impl Rendezvous {
    pub(super) fn admit_tensor(
        &self,
        place: &Place,
        key: &Text,
        tensor: &Tensor,
    ) -> Result<(), Status> {
        let step_id = place.step_id;
        if let Some(status) = self.closed.status(step_id) {
            return Err(status);
        }
        match place.entry {
            Some(entry) if self.table.entry(entry).tensor.is_some() => {
                return Err(Status::new(
                    Code::AlreadyExists,
                    format!("step {step_id} has a tensor under {key} already; send each key once"),
                ));
            }
            Some(_) => {}
            None => self.admit_key(place, key)?,
        }
        let bytes = tensor.data.len() as u64;
        let left = self.limits.stored_bytes.saturating_sub(self.stored_bytes);
        if bytes > left && (place.entry).is_none_or(|entry| self.first_taker(entry).is_none()) {
            return Err(exhausted(
                format_args!("{bytes} more bytes of tensors, {left} are left of"),
                "stored_bytes",
                self.limits.stored_bytes,
            ));
        }
        Ok(())
    }

    pub(super) fn admit_key(&self, place: &Place, key: &Text) -> Result<(), Status> {
        let step_id = place.step_id;
        let key_bytes = key.as_buffer().len();
        if key_bytes > self.limits.key_bytes {
            return Err(Status::new(
                Code::InvalidArgument,
                format!(
                    "a key of {key_bytes} bytes in step {step_id}, at most {} are allowed \
                     (key_bytes)",
                    self.limits.key_bytes
                ),
            ));
        }
        let entries = place.entries_of_step as usize;
        if entries == 0 && self.table.steps() >= self.limits.steps {
            return Err(exhausted(
                format_args!("step {step_id} would be one more than"),
                "steps",
                self.limits.steps,
            ));
        }
        if entries >= self.limits.keys_per_step {
            return Err(exhausted(
                format_args!("step {step_id} has as many waiting keys as"),
                "keys_per_step",
                self.limits.keys_per_step,
            ));
        }
        if self.table.is_full() {
            return Err(exhausted(
                format_args!("one more key than"),
                "keys of all steps",
                ENTRIES_MAX,
            ));
        }
        Ok(())
    }

    pub(super) fn admit_request(
        &self,
        step_id: i64,
        keys: usize,
        waiter: u64,
    ) -> Result<(), Status> {
        if keys == 0 {
            return Err(Status::new(
                Code::InvalidArgument,
                format!("a request for step {step_id} without a key; name at least one"),
            ));
        }
        if let Some(status) = self.closed.status(step_id) {
            return Err(status);
        }
        if keys > self.limits.keys_per_request {
            return Err(exhausted(
                format_args!("a request for {keys} keys"),
                "keys_per_request",
                self.limits.keys_per_request,
            ));
        }
        if self.waiters.find(waiter).is_some() {
            return Err(Status::new(
                Code::AlreadyExists,
                format!("request {waiter} waits already; each needs a name of its own"),
            ));
        }
        if self.waiters.len() >= self.limits.waiters {
            return Err(exhausted(
                format_args!("one more request than"),
                "waiters",
                self.limits.waiters,
            ));
        }
        if keys > WAITS_MAX - self.table.waits() {
            return Err(exhausted(
                format_args!("a request for {keys} keys goes beyond"),
                "keys that requests wait for",
                WAITS_MAX,
            ));
        }
        Ok(())
    }

    pub(super) fn admit_wait(&self, step_id: i64, entry: u32, slot: usize) -> Result<(), Status> {
        let key = &self.table.entry(entry).key;
        if self.table.last_waiter_at(entry) == Some(slot) {
            return Err(Status::new(
                Code::InvalidArgument,
                format!("a request for step {step_id} names {key} twice; a tensor goes out once"),
            ));
        }
        if self.table.entry(entry).waits as usize >= self.limits.waiters_per_key {
            return Err(exhausted(
                format_args!("one more request for {key} of step {step_id} than"),
                "waiters_per_key",
                self.limits.waiters_per_key,
            ));
        }
        Ok(())
    }
}

fn exhausted(
    what: std::fmt::Arguments<'_>,
    limit: &str,
    allowed: impl std::fmt::Display,
) -> Status {
    Status::new(
        Code::ResourceExhausted,
        format!(
            "{what} the limit {limit} = {allowed} of the rendezvous; receive or clean up first"
        ),
    )
    .because(Reason::Limit)
}
