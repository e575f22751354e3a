//! Instructions of a small call in user space, counted by valgrind: the figure that a busy machine
//! does not change.
//!
//! This program runs itself under callgrind twice, with few and with many calls, and divides the
//! difference. Both engines sleep while they have nothing to do, so that nobody counts looks in
//! vain.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::baseline::Way;
use crate::calls::{self, Load};
use crate::cluster::Setting;

/// A call of 64 bytes whose instructions are counted.
pub(crate) struct Kind {
    /// What the table calls it.
    pub(crate) name: &'static str,
    /// What the program that is watched is told.
    word: &'static str,
    way: Way,
    /// What the count may not exceed: some more than it was when this was written, for it grows a
    /// little where the machine is busy. Lower it when it falls.
    pub(crate) allowed: f64,
}

/// Instructions of one call in the shards of both sides, with those that take its tensor from its
/// producer. The reason if they cannot be counted.
pub(crate) fn per_call(kind: &Kind, keep: bool) -> Result<f64, String> {
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let few = total(&directory.path().join("few"), kind, FEW_CALLS)?;
    let many = total(&directory.path().join("many"), kind, MANY_CALLS)?;
    if keep {
        println!("callgrind_annotate {}/many-*", directory.keep().display());
    }
    Ok((many - few) as f64 / (MANY_CALLS - FEW_CALLS) as f64)
}

/// The program that callgrind watches: makes this many calls of the kind with this word.
pub(crate) fn make_calls(word: &str, calls: usize) {
    let kind = KINDS.iter().find(|kind| kind.word == word);
    let load = Load {
        way: kind.expect("one of the kinds").way,
        bytes: 64,
        connections: 16,
        depth: 32,
        calls,
        ready: FEW_CALLS,
        per_window: 512,
    };
    calls::run_unmeasured(Setting::sleeping("epoll"), load);
}

/// Instructions of a run in all threads but the first, which starts the others and produces
/// tensors.
fn total(output: &Path, kind: &Kind, calls: usize) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let run = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--fair-sched=yes",
            "--separate-threads=yes",
        ])
        .arg(format!("--callgrind-out-file={}", output.display()))
        .arg(program)
        .args([CHILD, kind.word, &calls.to_string()])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    if !run.status.success() {
        return Err(String::from_utf8_lossy(&run.stderr).into_owned());
    }
    let mut sum = 0;
    for thread in 2.. {
        let file = format!("{}-{thread:02}", output.display());
        let Ok(text) = std::fs::read_to_string(&file) else {
            break;
        };
        let totals = text.lines().find_map(|line| line.strip_prefix("totals: "));
        let number = totals.and_then(|number| number.trim().parse::<u64>().ok());
        sum += number.ok_or_else(|| format!("{file} has no totals"))?;
    }
    if sum == 0 {
        return Err("callgrind saw no threads".to_owned());
    }
    Ok(sum)
}

/// The word before a kind of calls and their number, for the program that is watched.
pub(crate) const CHILD: &str = "--make-calls";

/// Each kind of call.
pub(crate) const KINDS: [Kind; 3] = [
    Kind {
        name: "64 B call",
        word: "pull",
        way: Way::Pull,
        allowed: 2600.0,
    },
    Kind {
        name: "64 B graph call",
        word: "function",
        way: Way::Function,
        allowed: 13_000.0,
    },
    Kind {
        name: "64 B typed call",
        word: "method",
        way: Way::Method,
        allowed: 12_500.0,
    },
];

const FEW_CALLS: usize = 1 << 13;
const MANY_CALLS: usize = 5 << 13;
