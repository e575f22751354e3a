//! How a cluster starts: its ports and its map, then each of its processes.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::ports::held_ports;
use super::super::process::{Begin, LogLine, LogSink, Process};
use super::{LocalCluster, LocalError, LocalOptions, Task, system};

impl LocalCluster {
    /// Starts all tasks and waits until each is ready. `log` gets each line that a task writes.
    ///
    /// If a port was taken by another program before the task got it, the whole start is tried
    /// again.
    ///
    /// # Errors
    /// A task could not be started, ended, or was not ready in time; the others are ended then.
    pub fn start(
        options: LocalOptions,
        log: impl Fn(LogLine) + Send + Sync + 'static,
    ) -> Result<Self, LocalError> {
        Self::start_unless(options, log, || false)
    }

    /// As [`LocalCluster::start`], and asks `gives_up` some 100 times a second whether to wait any
    /// longer.
    ///
    /// # Errors
    /// As for [`LocalCluster::start`], and [`LocalError::GivenUp`].
    pub fn start_unless(
        options: LocalOptions,
        log: impl Fn(LogLine) + Send + Sync + 'static,
        mut gives_up: impl FnMut() -> bool,
    ) -> Result<Self, LocalError> {
        let log: LogSink = Arc::new(log);
        let mut attempt = 1;
        loop {
            let mut cluster = Self::prepare(options.clone(), Arc::clone(&log))?;
            match cluster.start_all(&mut gives_up) {
                Err(LocalError::Ended { status, .. })
                    if status.code() == Some(ADDRESS_IN_USE) && attempt < START_ATTEMPTS =>
                {
                    attempt += 1;
                }
                Err(error) => return Err(error),
                Ok(()) => return Ok(cluster),
            }
        }
    }

    /// Chooses ports and writes the map.
    fn prepare(options: LocalOptions, log: LogSink) -> Result<Self, LocalError> {
        let count = options.ps + options.workers;
        if count == 0 {
            return Err(LocalError::NoTasks);
        }
        let ports = held_ports(2 * count, IpAddr::V4(Ipv4Addr::LOCALHOST));
        let ports = ports.map_err(system("find free ports".to_owned()))?;
        let jobs = std::iter::repeat_n("ps", options.ps)
            .chain(std::iter::repeat_n("worker", options.workers));
        let indices = (0..options.ps).chain(0..options.workers);
        let tasks: Vec<Task> = jobs
            .zip(indices)
            .zip(ports.chunks_exact(2))
            .map(|((job, index), ports)| Task {
                job,
                index,
                grpc_address: format!("127.0.0.1:{}", ports[0].number()),
                star_address: format!("127.0.0.1:{}", ports[1].number()),
                process: None,
            })
            .collect();
        let folder = tempfile::Builder::new()
            .prefix("grpcxx-local-")
            .tempdir()
            .map_err(system("make a folder for temporary files".to_owned()))?;
        let mut map = String::new();
        for task in &tasks {
            // Writing to a String cannot fail.
            let _ = writeln!(map, "{}={}", task.grpc_address, task.star_address);
        }
        let path = folder.path().join(".endpoint_map");
        std::fs::write(&path, map).map_err(system(format!("write {}", path.display())))?;
        Ok(Self {
            cluster_spec: cluster_spec(&tasks),
            _ports: ports,
            options,
            folder,
            tasks,
            log,
        })
    }

    fn start_all(&mut self, gives_up: &mut dyn FnMut() -> bool) -> Result<(), LocalError> {
        for index in 0..self.tasks.len() {
            self.spawn(index)?;
        }
        let deadline = self.ready_deadline();
        (0..self.tasks.len()).try_for_each(|index| self.wait_ready(index, deadline, gives_up))
    }

    pub(super) fn ready_deadline(&self) -> Option<Instant> {
        self.options.ready_timeout.map(|time| Instant::now() + time)
    }

    pub(super) fn spawn(&mut self, index: usize) -> Result<(), LocalError> {
        let task = &self.tasks[index];
        let name = task.name();
        let mut command = Command::new(&self.options.server);
        command
            .args(["--cluster-spec", &self.cluster_spec])
            .args(["--job-name", task.job])
            .args(["--task-index", &task.index.to_string()])
            .arg("--endpoint-map")
            .arg(self.endpoint_map())
            .arg("--until-stdin-closes")
            .args(&self.options.arguments)
            .envs(
                self.options
                    .environment
                    .iter()
                    .map(|(name, value)| (name, value)),
            );
        for file in &self.options.load {
            command.arg("--load").arg(file);
        }
        let process = Process::start(&mut command, Stdio::piped(), &name, &self.log).map_err(
            system(format!(
                "start {}, which runs task {name}",
                self.options.server.display()
            )),
        )?;
        self.tasks[index].process = Some(process);
        Ok(())
    }

    pub(super) fn wait_ready(
        &mut self,
        index: usize,
        deadline: Option<Instant>,
        gives_up: &mut dyn FnMut() -> bool,
    ) -> Result<(), LocalError> {
        let task = &mut self.tasks[index];
        let name = task.name();
        let Some(process) = &mut task.process else {
            return Ok(());
        };
        let mut is_given_up = false;
        let begin = process
            .wait_ready(|| {
                is_given_up = gives_up();
                is_given_up || deadline.is_some_and(|deadline| Instant::now() >= deadline)
            })
            .map_err(system(format!("watch task {name}")))?;
        match begin {
            Begin::Ready => Ok(()),
            Begin::NotReady if is_given_up => Err(LocalError::GivenUp),
            Begin::NotReady => Err(LocalError::NotReady {
                task: name,
                waited: self.options.ready_timeout.unwrap_or(Duration::ZERO),
                last_words: process.last_error(),
            }),
            Begin::Ended(status) => Err(LocalError::Ended {
                task: name,
                status,
                last_words: process.last_error(),
            }),
        }
    }
}

fn cluster_spec(tasks: &[Task]) -> String {
    let mut spec = String::new();
    for task in tasks {
        if task.index > 0 {
            spec.push(';');
        } else {
            if !spec.is_empty() {
                spec.push(',');
            }
            spec.push_str(task.job);
            spec.push('|');
        }
        spec.push_str(&task.grpc_address);
    }
    spec
}

/// Exit code of `grpcxx-server` when a port is taken.
const ADDRESS_IN_USE: i32 = 75;
const START_ATTEMPTS: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_have_one_part_for_each_job() {
        let task = |job, index, port| Task {
            job,
            index,
            grpc_address: format!("h:{port}"),
            star_address: String::new(),
            process: None,
        };
        let tasks = [task("ps", 0, 1), task("ps", 1, 2), task("worker", 0, 3)];
        assert_eq!(cluster_spec(&tasks), "ps|h:1;h:2,worker|h:3");
        assert_eq!(cluster_spec(&tasks[2..]), "worker|h:3");
    }
}
