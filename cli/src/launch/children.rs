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
    children: Vec<(Child, Option<Process>)>,
    log: LogSink,
    reaper: Reaper,
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
            children: children.into_iter().map(|child| (child, None)).collect(),
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
        for (child, process) in &mut self.children {
            if process.is_none() {
                *process = Some(child.start(&self.log).map_err(LaunchError::system(format!(
                    "start {:?} as {}",
                    child.command.first().cloned().unwrap_or_default(),
                    child.name
                )))?);
            }
        }
        Ok(())
    }

    /// The ranks whose processes have ended since the last time.
    ///
    /// # Errors
    /// The system lost track of one.
    pub fn ended(&mut self) -> Result<Vec<(u32, End)>, LaunchError> {
        let mut ends = Vec::new();
        for (child, slot) in &mut self.children {
            let Some(process) = slot else {
                continue;
            };
            let status = process
                .try_end()
                .map_err(LaunchError::system(format!("watch {}", child.name)))?;
            if let Some(status) = status {
                ends.push((
                    child.rank,
                    End {
                        kind: EndKind::of(status),
                        how: status.to_string(),
                        last_lines: process.last_errors(),
                    },
                ));
                *slot = None;
            }
        }
        self.reaper.reap(|number| {
            let mut running = self
                .children
                .iter()
                .filter_map(|(_, process)| process.as_ref());
            running.any(|process| process.id() == number)
        });
        Ok(ends)
    }

    /// Asks all to stop, and after `grace` ends those that still run.
    ///
    /// # Errors
    /// The system lost track of one.
    pub fn stop(&mut self, grace: Duration) -> Result<(), LaunchError> {
        for process in self
            .children
            .iter_mut()
            .filter_map(|(_, process)| process.as_mut())
        {
            process.terminate();
        }
        let deadline = Instant::now() + grace;
        for (child, process) in &mut self.children {
            if let Some(mut process) = process.take() {
                process
                    .wait_or_kill(deadline)
                    .map_err(LaunchError::system(format!("end {}", child.name)))?;
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Children {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let children = self.children.iter().map(|(child, _)| child);
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
