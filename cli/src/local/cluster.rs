mod start;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::ports::HeldPort;
use super::process::{LogSink, Process};

/// What a local cluster is made of.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// The program `grpcxx-server`.
    pub server: PathBuf,
    /// Number of tasks of job `ps`.
    pub ps: usize,
    /// Number of tasks of job `worker`.
    pub workers: usize,
    /// safetensors files that the ps tasks load and share.
    pub load: Vec<PathBuf>,
    /// Further arguments of every task.
    pub arguments: Vec<OsString>,
    /// Further variables of every task.
    pub environment: Vec<(String, String)>,
    /// How long all tasks may take until they are ready; `None` if as long as they run: nobody
    /// knows how long a model takes to load.
    pub ready_timeout: Option<Duration>,
}

/// A running cluster of `grpcxx-server` processes on this machine, with free ports and a map of its
/// own.
///
/// Dropping it ends all processes; [`LocalCluster::stop`] lets them finish what is in flight. If
/// the program that holds it dies, the processes stop by themselves, because their standard input
/// ends.
pub struct LocalCluster {
    options: LocalOptions,
    folder: TempDir,
    cluster_spec: String,
    tasks: Vec<Task>,
    /// Held for tasks that start again.
    _ports: Vec<HeldPort>,
    log: LogSink,
}

#[derive(Debug)]
struct Task {
    job: &'static str,
    index: usize,
    grpc_address: String,
    star_address: String,
    process: Option<Process>,
}

/// Why a local cluster is not there, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The options ask for nothing.
    #[error("a cluster needs at least one task: ask for a ps or a worker")]
    NoTasks,
    /// The system refused a step.
    #[error("cannot {action}: {cause}")]
    System {
        /// What was attempted.
        action: String,
        /// The reason of the operating system.
        cause: io::Error,
    },
    /// A task ended before it was ready, or while it should run.
    #[error("task {task} ended ({status}); its last words: {last_words}")]
    Ended {
        /// The task, as in `ps:0`.
        task: String,
        /// How it ended.
        status: ExitStatus,
        /// The last line of its log.
        last_words: String,
    },
    /// The caller gave up before all tasks were ready.
    #[error("the cluster was given up before it was ready")]
    GivenUp,
    /// A task did not become ready in time.
    #[error("task {task} was not ready after {} s; its last words: {last_words}", waited.as_secs_f32())]
    NotReady {
        /// The task, as in `ps:0`.
        task: String,
        /// How long it had.
        waited: Duration,
        /// The last line of its log.
        last_words: String,
    },
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self {
            server: PathBuf::from("grpcxx-server"),
            ps: 1,
            workers: 1,
            load: Vec::new(),
            arguments: Vec::new(),
            environment: Vec::new(),
            ready_timeout: None,
        }
    }
}

impl LocalCluster {
    /// The cluster as `--cluster-spec` takes it.
    pub fn cluster_spec(&self) -> &str {
        &self.cluster_spec
    }

    /// The file that joins gRPC and star addresses.
    pub fn endpoint_map(&self) -> PathBuf {
        self.folder.path().join(".endpoint_map")
    }

    /// The folder that holds the map; it goes with the cluster.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The names of all tasks, as in `ps:0`.
    pub fn tasks(&self) -> Vec<String> {
        self.tasks.iter().map(Task::name).collect()
    }

    /// The gRPC address of a task.
    pub fn grpc_address(&self, task: &str) -> Option<&str> {
        self.find(task).map(|task| task.grpc_address.as_str())
    }

    /// The star address of a task.
    pub fn star_address(&self, task: &str) -> Option<&str> {
        self.find(task).map(|task| task.star_address.as_str())
    }

    /// The id of a task's process, while it runs.
    pub fn process_id(&self, task: &str) -> Option<u32> {
        self.find(task)?.process.as_ref().map(Process::id)
    }

    /// Asks one task to stop and waits for its end at most `grace`, then ends it.
    ///
    /// # Errors
    /// The system lost track of the process.
    pub fn stop_task(
        &mut self,
        task: &str,
        grace: Duration,
    ) -> Result<Option<ExitStatus>, LocalError> {
        let Some(mut process) = self.take(task) else {
            return Ok(None);
        };
        process.terminate();
        process
            .wait_or_kill(Instant::now() + grace)
            .map(Some)
            .map_err(system(format!("stop task {task}")))
    }

    /// Ends one task at once, as a crash would.
    ///
    /// # Errors
    /// The system lost track of the process.
    pub fn kill_task(&mut self, task: &str) -> Result<Option<ExitStatus>, LocalError> {
        let Some(mut process) = self.take(task) else {
            return Ok(None);
        };
        process
            .kill()
            .map(Some)
            .map_err(system(format!("end task {task}")))
    }

    /// Starts a task again on its old ports and waits until it is ready.
    ///
    /// # Errors
    /// As for [`LocalCluster::start`].
    pub fn restart_task(&mut self, task: &str) -> Result<(), LocalError> {
        let Some(index) = self.tasks.iter().position(|known| known.name() == task) else {
            return Ok(());
        };
        self.tasks[index].process = None;
        self.spawn(index)?;
        self.wait_ready(index, self.ready_deadline(), &mut || false)
    }

    /// Looks whether all tasks still run.
    ///
    /// # Errors
    /// The first one that does not.
    pub fn check(&mut self) -> Result<(), LocalError> {
        for task in &mut self.tasks {
            let Some(process) = &mut task.process else {
                continue;
            };
            let ended = process
                .try_end()
                .map_err(system(format!("watch task {}:{}", task.job, task.index)))?;
            if let Some(status) = ended {
                return Err(LocalError::Ended {
                    last_words: process.last_error(),
                    task: task.name(),
                    status,
                });
            }
        }
        Ok(())
    }

    /// Asks all tasks to stop and waits for them at most `grace`; those that still run then are
    /// ended.
    ///
    /// # Errors
    /// The first task that did not end with exit code 0.
    pub fn stop(mut self, grace: Duration) -> Result<(), LocalError> {
        for task in &mut self.tasks {
            if let Some(process) = &mut task.process {
                process.terminate();
            }
        }
        let deadline = Instant::now() + grace;
        let mut first_failure = Ok(());
        for task in &mut self.tasks {
            let Some(mut process) = task.process.take() else {
                continue;
            };
            let end = match process.wait_or_kill(deadline) {
                Ok(status) if status.success() => Ok(()),
                Ok(status) => Err(LocalError::Ended {
                    task: task.name(),
                    last_words: process.last_error(),
                    status,
                }),
                Err(error) => Err(system(format!("stop task {}", task.name()))(error)),
            };
            first_failure = first_failure.and(end);
        }
        first_failure
    }

    fn find(&self, name: &str) -> Option<&Task> {
        self.tasks.iter().find(|task| task.name() == name)
    }

    fn take(&mut self, name: &str) -> Option<Process> {
        let task = self.tasks.iter_mut().find(|task| task.name() == name)?;
        task.process.take()
    }
}

impl std::fmt::Debug for LocalCluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalCluster")
            .field("cluster_spec", &self.cluster_spec)
            .field("folder", &self.folder.path())
            .finish_non_exhaustive()
    }
}

impl Task {
    fn name(&self) -> String {
        format!("{}:{}", self.job, self.index)
    }
}

fn system(action: String) -> impl FnOnce(io::Error) -> LocalError {
    move |cause| LocalError::System { action, cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    // One test, because a script that is being written while another thread forks is busy.
    #[test]
    fn tasks_are_ready_after_their_notice_and_reported_when_they_end() {
        let folder = tempfile::tempdir().unwrap();
        let script = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            make_executable(&path);
            LocalOptions {
                server: path,
                workers: 2,
                ..LocalOptions::default()
            }
        };
        let unlucky = script("unlucky", "#!/bin/sh\necho 'no luck today' >&2\nexit 3\n");
        let text = LocalCluster::start(unlucky, |_| ())
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("ps:0") && text.contains("no luck today"),
            "{text}"
        );

        let patient = script("patient", "#!/bin/sh\necho grpcxx-server ready\nexec cat\n");
        let mut cluster = LocalCluster::start(patient, |_| ()).unwrap();
        assert_eq!(cluster.tasks(), ["ps:0", "worker:0", "worker:1"]);
        cluster.check().unwrap();
        let map = std::fs::read_to_string(cluster.endpoint_map()).unwrap();
        assert_eq!(map.lines().count(), 3);
        cluster.kill_task("worker:1").unwrap();
        cluster.restart_task("worker:1").unwrap();
        // `cat` ends by the signal, which is no exit code 0.
        let error = cluster.stop(Duration::from_secs(5)).unwrap_err();
        assert!(matches!(error, LocalError::Ended { .. }), "{error}");
    }

    fn make_executable(path: &Path) {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
}
