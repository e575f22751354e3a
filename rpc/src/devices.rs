//! The devices of this task, and which keys are meant for them.

use std::collections::BTreeMap;

use crate::key::is_full_device_name;
use crate::{Code, Reason, RendezvousKey, Status, Text};

/// The devices of this task, each with its incarnation.
///
/// An incarnation is a random number that a device draws at start. A key that names an older one
/// comes from a peer that does not know yet that this task was restarted.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    incarnations: BTreeMap<Text, u64>,
}

impl Devices {
    /// No devices: every key is refused.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a device by its full name, as in `/job:ps/replica:0/task:0/device:CPU:0`.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if that is no full device name, `ALREADY_EXISTS` if it was added before.
    pub fn insert(&mut self, name: impl Into<Text>, incarnation: u64) -> Result<(), Status> {
        let name = name.into();
        if !is_full_device_name(&name) {
            return Err(Status::new(
                Code::InvalidArgument,
                format!(
                    "{name} is no full device name; write one like \
                     /job:ps/replica:0/task:0/device:CPU:0"
                ),
            ));
        }
        if self.incarnations.contains_key(name.as_str()) {
            return Err(Status::new(
                Code::AlreadyExists,
                format!("device {name} was added before; a task has each device once"),
            ));
        }
        self.incarnations.insert(name, incarnation);
        Ok(())
    }

    /// The incarnation of a device of this task.
    pub fn incarnation(&self, name: &str) -> Option<u64> {
        self.incarnations.get(name).copied()
    }

    /// Names and incarnations in byte order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&Text, u64)> {
        self.incarnations
            .iter()
            .map(|(name, &number)| (name, number))
    }

    /// Whether the tensor of this key is produced by a device of this task, in its present life.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` (the code of an unmodified peer's device lookup) if the source device is
    /// not here, `ABORTED` if its incarnation is another: this task was restarted since the peer
    /// last asked.
    pub fn check(&self, key: &RendezvousKey<'_>) -> Result<(), Status> {
        let name = key.source_device();
        let Some(incarnation) = self.incarnation(name) else {
            return Err(self.unknown(name));
        };
        if incarnation == key.source_incarnation() {
            return Ok(());
        }
        Err(Status::new(
            Code::Aborted,
            format!(
                "RecvTensor expects a different device incarnation: {} vs. {incarnation}. The task \
                 of {name} \
                 was restarted; call GetStatus for its present incarnation and start the step \
                 again",
                key.source_incarnation()
            ),
        )
        .because(Reason::OtherIncarnation))
    }

    fn unknown(&self, name: &str) -> Status {
        let known = match self.incarnations.first_key_value() {
            None => "this task has no devices".to_owned(),
            Some((first, _)) => format!(
                "this task has {} device(s), the first is {first}",
                self.incarnations.len()
            ),
        };
        Status::new(
            Code::InvalidArgument,
            format!(
                "{name} unknown device. {known}; check the cluster spec and .endpoint_map of the \
                 caller"
            ),
        )
        .because(Reason::UnknownDevice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PS: &str = "/job:ps/replica:0/task:0/device:CPU:0";
    const WORKER: &str = "/job:worker/replica:0/task:0/device:CPU:0";

    /// Also checklist 17: a restarted task refuses keys of its former life.
    #[test]
    fn checklist_26_another_incarnation_is_aborted() {
        let mut devices = Devices::new();
        devices.insert(PS, 7).unwrap();
        let check = |source, incarnation| {
            devices.check(&RendezvousKey::new(source, incarnation, WORKER, "e").unwrap())
        };
        assert_eq!(check(PS, 7), Ok(()));
        let restarted = check(PS, 6).unwrap_err();
        assert_eq!(restarted.code, Code::Aborted);
        assert_eq!(restarted.reason, Reason::OtherIncarnation);
        assert!(restarted.message.contains("6 vs. 7"), "{restarted}");
        let unknown = check(WORKER, 7).unwrap_err();
        assert_eq!(unknown.code, Code::InvalidArgument);
        assert_eq!(unknown.reason, Reason::UnknownDevice);
        assert!(unknown.message.contains("unknown device"), "{unknown}");
        assert!(unknown.message.contains(PS), "{unknown}");
    }

    #[test]
    fn devices_are_added_once_and_by_full_name() {
        let mut devices = Devices::new();
        devices.insert(PS, 1).unwrap();
        assert_eq!(devices.insert(PS, 2).unwrap_err().code, Code::AlreadyExists);
        assert_eq!(
            devices.insert("CPU:0", 2).unwrap_err().code,
            Code::InvalidArgument
        );
        assert_eq!(devices.incarnation(PS), Some(1));
        assert_eq!(devices.iter().count(), 1);
    }
}
