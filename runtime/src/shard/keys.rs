use grpcxx_rpc::{Status, Text};

use crate::task::Task;

/// The keys that were found good lately, so that those of the next step need not be parsed again.
///
/// A set-associative cache: each key has its place in one of two lines, which its hash names, and the one used
/// last stays longer. Memory of lines is used again.
#[derive(Debug)]
pub(super) struct CheckedKeys {
    lines: Box<[Vec<u8>]>,
}

impl CheckedKeys {
    pub(super) fn new() -> Self {
        Self {
            lines: vec![Vec::new(); LINES].into_boxed_slice(),
        }
    }

    /// Whether a tensor with this key can come from `task`; `hash` is any hash of the key.
    pub(super) fn check(&mut self, hash: u64, key: &Text, task: &Task) -> Result<(), Status> {
        let bytes = &key.as_buffer()[..];
        if bytes.is_empty() {
            // As a line that holds nothing yet.
            return task.check_key(key);
        }
        let first = hash as usize % (LINES / 2) * 2;
        let set = &mut self.lines[first..first + 2];
        if set[0] == bytes {
            return Ok(());
        }
        if set[1] != bytes {
            task.check_key(key)?;
            if bytes.len() > LINE_BYTES_MAX {
                return Ok(());
            }
            set[1].clear();
            set[1].extend_from_slice(bytes);
        }
        set.swap(0, 1);
        Ok(())
    }
}

/// Keys that are remembered.
const LINES: usize = 4096;

/// Longest key that is remembered.
const LINE_BYTES_MAX: usize = 512;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::cluster::TaskId;
    use crate::task::Device;

    #[test]
    fn bad_keys_stay_bad_and_good_ones_good_wherever_they_fall() {
        let id = TaskId::new("ps", 0);
        let task = Task::new(id.clone(), &[Device::cpu(&id, 7, 0)]).unwrap();
        let key = |incarnation: u64, edge: usize| {
            Text::from(format!(
                "/job:ps/replica:0/task:0/device:CPU:0;{incarnation:016x};/job:w/replica:0/task:0/device:CPU:0;e{edge};0:0"
            ))
        };
        let mut keys = CheckedKeys::new();
        for round in 0..3 {
            for edge in 0..20 {
                let hash = edge as u64 / 5;
                assert_eq!(keys.check(hash, &key(7, edge), &task), Ok(()), "{round}");
                assert!(keys.check(hash, &key(8, edge), &task).is_err());
            }
        }
        let long = key(7, 0)
            .to_string()
            .replace("e0", &"e".repeat(LINE_BYTES_MAX));
        assert_eq!(keys.check(9, &Text::from(long), &task), Ok(()));
        assert!(keys.lines.iter().all(|line| line.len() <= LINE_BYTES_MAX));
        assert!(keys.check(0, &Text::from(""), &task).is_err());
    }
}
