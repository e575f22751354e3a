//! The processes that this launcher runs: started, watched and ended together.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::reaper::Reaper;
use super::{CpuShare, End, EndKind, LaunchError};
use crate::local::{LogLine, LogSink, Process};

/// What one process is started with.
#[derive(Clone, Debug)]
pub struct Child {
    /// Its rank.
    pub rank: u32,
    /// Its task, as in `ps:0`.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Variables beside those of this process.
    pub environment: Vec<(String, OsString)>,
    /// Its CPUs, if they are divided.
    pub cpus: Option<CpuShare>,
}

/// The processes of this launcher. Dropping it ends them.
pub struct Children {
    children: Vec<Seat>,
    log: LogSink,
    reaper: Reaper,
}

/// A child, and its process while that, or what it has started, is there.
struct Seat {
    child: Child,
    process: Option<Process>,
    /// When what the process has left behind is ended; `None` while the process itself runs.
    leaves_at: Option<Instant>,
}

impl Children {
    /// Starts all processes. `log` gets each line that one of them writes.
    ///
    /// # Errors
    /// One cannot be started; the others are ended then.
    pub fn start(
        children: Vec<Child>,
        log: impl Fn(LogLine) + Send + Sync + 'static,
    ) -> Result<Self, LaunchError> {
        let mut started = Self {
            children: children.into_iter().map(Seat::empty).collect(),
            log: Arc::new(log),
            reaper: Reaper::new(),
        };
        started.start_again()?;
        Ok(started)
    }

    /// Starts those that do not run, which after [`Children::stop`] are all.
    ///
    /// # Errors
    /// As for [`Children::start`].
    pub fn start_again(&mut self) -> Result<(), LaunchError> {
        for seat in &mut self.children {
            if seat.process.is_none() {
                let child = &seat.child;
                let process = child.start(&self.log).map_err(LaunchError::system(format!(
                    "start {:?} as {}",
                    child.command.first().cloned().unwrap_or_default(),
                    child.name
                )))?;
                seat.process = Some(process);
                seat.leaves_at = None;
            }
        }
        Ok(())
    }

    /// The ranks whose processes have ended since the last time. What those have left behind is
    /// asked to stop, and ended after the grace.
    ///
    /// # Errors
    /// The system lost track of one.
    pub fn ended(&mut self) -> Result<Vec<(u32, End)>, LaunchError> {
        let mut ends = Vec::new();
        for seat in &mut self.children {
            if let Some(end) = seat.end()? {
                ends.push((seat.child.rank, end));
            }
        }
        self.reaper.reap(|number| {
            let mut running = self
                .children
                .iter()
                .filter_map(|seat| seat.process.as_ref());
            running.any(|process| process.id() == number)
        });
        Ok(ends)
    }

    /// Asks all, and what they have started, to stop, and after the grace ends those that still
    /// run.
    ///
    /// # Errors
    /// One does not end, or the system lost track of it; the others are stopped all the same.
    pub fn stop(&mut self) -> Result<(), LaunchError> {
        for seat in &mut self.children {
            if let Some(process) = &mut seat.process {
                process.terminate();
            }
        }
        let deadline = Instant::now() + GRACE;
        let mut first_failure = Ok(());
        for seat in &mut self.children {
            if let Some(mut process) = seat.process.take() {
                let end = process
                    .wait_or_kill(seat.leaves_at.unwrap_or(deadline))
                    .map_err(LaunchError::system(format!("end {}", seat.child.name)));
                first_failure = first_failure.and(end.map(drop));
            }
        }
        first_failure
    }
}

impl Seat {
    fn empty(child: Child) -> Self {
        Self {
            child,
            process: None,
            leaves_at: None,
        }
    }

    /// How the process has ended, once. Frees the seat when nothing of it is left.
    fn end(&mut self) -> Result<Option<End>, LaunchError> {
        let Some(process) = &mut self.process else {
            return Ok(None);
        };
        if let Some(deadline) = self.leaves_at {
            if process.is_gone(deadline) {
                self.process = None;
            }
            return Ok(None);
        }
        let status = process
            .try_end()
            .map_err(LaunchError::system(format!("watch {}", self.child.name)))?;
        Ok(status.map(|status| {
            self.leaves_at = Some(Instant::now() + GRACE);
            End {
                kind: EndKind::of(status),
                how: status.to_string(),
                last_lines: process.last_errors(),
            }
        }))
    }
}

impl std::fmt::Debug for Children {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let children = self.children.iter().map(|seat| &seat.child);
        f.debug_list().entries(children).finish()
    }
}

impl Child {
    fn start(&self, log: &LogSink) -> io::Result<Process> {
        let [program, arguments @ ..] = &self.command[..] else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "no program was named",
            ));
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        let mut start = || Process::start(&mut command, self.input(), &self.name, log);
        match &self.cpus {
            Some(cpus) => cpus.apply(start),
            None => start(),
        }
    }

    /// What rank 0 reads is what this launcher was given; others find the end at once, and so does
    /// rank 0 at a terminal, from which a group in the background may not read.
    fn input(&self) -> Stdio {
        match self.rank == 0 && !io::stdin().is_terminal() {
            true => Stdio::inherit(),
            false => Stdio::null(),
        }
    }
}

/// How long processes that are asked to stop may take.
const GRACE: Duration = Duration::from_secs(5);
