use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// CPU time that this process has used so far, over all threads.
pub fn cpu_time() -> Duration {
    // rustix panics where the kernel's vDSO has less than all functions.
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID)
        .map(Duration::from)
        .unwrap_or_default()
}

/// Lets this process open as many files as the system allows, and returns their number.
pub fn raise_open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // If it is refused, the number in force stays.
    let _ = setrlimit(Resource::Nofile, raised);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Checks that `connections` connections fit into the limit of open files.
///
/// # Errors
/// A text that says how to raise the limit.
pub(super) fn require_open_files(connections: usize) -> Result<(), String> {
    let allowed = raise_open_files();
    let needed = connections as u64 + OTHER_FILES;
    if needed <= allowed {
        return Ok(());
    }
    Err(format!(
        "{connections} connections need {needed} open files, and the system allows {allowed}; raise it with `ulimit -n {needed}`, or use more processes"
    ))
}

/// Files that a process has open beside its connections.
const OTHER_FILES: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_is_named_with_its_remedy() {
        require_open_files(1).unwrap();
        let text = require_open_files(usize::MAX / 4).unwrap_err();
        assert!(text.contains("ulimit -n"), "{text}");
    }
}
