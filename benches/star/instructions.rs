//! Instructions of a small call in user space, counted by valgrind: the figure that a busy machine
//! does not change.
//!
//! This program runs itself under callgrind twice, with few and with many calls, and divides the
//! difference. Both engines sleep while they have nothing to do, so that nobody counts looks in
//! vain; and only turns of shards are counted, for how often a shard falls asleep depends on what
//! else the machine does.

use std::io::{self, ErrorKind};
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
    /// What the count may not exceed: 2 to 4 % more than it was when this was written, for another
    /// compiler makes a little more of it. Lower it when it falls.
    pub(crate) allowed: f64,
}

/// Why there is no count.
pub(crate) enum Uncounted {
    NoValgrind,
    Failed(String),
}

/// Instructions of one call in the shards of both sides, with those that take its tensor from its
/// producer.
pub(crate) fn per_call(kind: &Kind, keep: bool) -> Result<f64, Uncounted> {
    let directory = tempfile::tempdir()?;
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

/// Instructions of the turns of a run in all threads but the first, which starts the others and
/// produces tensors.
fn total(output: &Path, kind: &Kind, calls: usize) -> Result<u64, Uncounted> {
    let program = std::env::current_exe()?;
    let run = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--fair-sched=yes",
            "--separate-threads=yes",
        ])
        .arg(format!("--toggle-collect={TURN}"))
        .arg(format!("--callgrind-out-file={}", output.display()))
        .arg(program)
        .args([CHILD, kind.word, &calls.to_string()])
        .stdin(Stdio::null())
        .output();
    let run = match run {
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(Uncounted::NoValgrind),
        run => run?,
    };
    if !run.status.success() {
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        return Err(Uncounted::Failed(said));
    }
    let mut sum = 0;
    for thread in 2.. {
        let file = format!("{}-{thread:02}", output.display());
        let Ok(text) = std::fs::read_to_string(&file) else {
            break;
        };
        let totals = text.lines().find_map(|line| line.strip_prefix("totals: "));
        let number = totals.and_then(|number| number.trim().parse::<u64>().ok());
        sum += number.ok_or_else(|| Uncounted::Failed(format!("{file} has no totals")))?;
    }
    if sum == 0 {
        let reason = format!("callgrind saw no {TURN}");
        return Err(Uncounted::Failed(reason));
    }
    Ok(sum)
}

impl From<io::Error> for Uncounted {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// The function, in callgrind's pattern, in which a shard takes a turn.
const TURN: &str = "*ShardLoop>::turn*";

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
        allowed: 12_400.0,
    },
    Kind {
        name: "64 B typed call",
        word: "method",
        way: Way::Method,
        allowed: 12_400.0,
    },
];

const FEW_CALLS: usize = 1 << 13;
const MANY_CALLS: usize = 5 << 13;
