//! Tasks whose control group has less time of CPUs than polling takes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::TOOL;

/// A control group with half the time of a CPU, which ends with the test.
struct HalfACpu(PathBuf);

impl HalfACpu {
    /// `None` where this process may make no such group.
    fn make() -> Option<Self> {
        let name = format!("grpcxx-test-{}", std::process::id());
        let hierarchies = [
            ("/sys/fs/cgroup", "cpu.max", "50000 100000"),
            ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "50000"),
        ];
        hierarchies.iter().find_map(|(root, file, limit)| {
            let group = Self(Path::new(root).join(&name));
            fs::create_dir(&group.0).ok()?;
            let file = group.0.join(file);
            (file.exists() && fs::write(file, limit).is_ok()).then_some(group)
        })
    }

    /// A program that runs in the group.
    fn command(&self, program: &str) -> Command {
        let joined = format!(
            "echo $$ > {}/cgroup.procs; exec \"$0\" \"$@\"",
            self.0.display()
        );
        let mut command = Command::new("sh");
        command.args(["-c", &joined, program]);
        command
    }
}

impl Drop for HalfACpu {
    fn drop(&mut self) {
        // Whoever may make it may remove it, once nobody is in it.
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn polling_is_left_out_in_half_a_cpu() {
    let Some(group) = HalfACpu::make() else {
        println!("left out: this process may make no control group with a limit of CPU time");
        return;
    };
    let served = group
        .command(TOOL)
        .args([
            "bench",
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--transport",
            "tcp",
        ])
        .args(["--polling", "on", "--shards", "1", "--run-for", "1"])
        .env("GRPCXX_LOG", "info")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&served.stderr);
    for wanted in [
        "polling is left out",
        "there are 1",
        "the time of 0.5",
        "GRPCXX_SHARDS",
    ] {
        assert!(told.contains(wanted), "{wanted}: {told}");
    }
    let stat = fs::read_to_string(group.0.join("cpu.stat")).unwrap();
    let number = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    // A shard that polls is throttled in each period.
    let (throttled, periods) = (number("nr_throttled "), number("nr_periods "));
    assert!(
        throttled * 2 < periods.max(8),
        "{throttled} of {periods} periods"
    );
}
