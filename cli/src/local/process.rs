use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// One line that a task wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// The task, as in `ps:0`.
    pub task: String,
    /// Where the task wrote it.
    pub stream: Stream,
    /// The line without its end.
    pub text: String,
}

/// An output of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output, which holds the ready notice.
    Output,
    /// Standard error, which holds the log.
    Error,
}

/// Takes each line of each task, on a thread of its own.
pub(super) type LogSink = Arc<dyn Fn(LogLine) + Send + Sync>;

/// A running task: its process, and the threads that read its lines.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    ready: Receiver<String>,
    last_error: Arc<Mutex<String>>,
    readers: Vec<thread::JoinHandle<()>>,
}

impl Process {
    /// Starts `command` with its own process group, so that the terminal's Ctrl-C reaches only us,
    /// and with a standard input that ends when we do.
    pub(super) fn start(command: &mut Command, task: &str, log: &LogSink) -> io::Result<Self> {
        use std::os::unix::process::CommandExt;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let (ready_sender, ready) = channel();
        let last_error = Arc::new(Mutex::new(String::new()));
        let mut readers = Vec::new();
        if let Some(output) = child.stdout.take() {
            let task = task.to_owned();
            let log = Arc::clone(log);
            readers.push(thread::spawn(move || {
                read_lines(output, |text| {
                    offer_ready(&ready_sender, &text);
                    log(LogLine {
                        task: task.clone(),
                        stream: Stream::Output,
                        text,
                    });
                });
            }));
        }
        if let Some(error) = child.stderr.take() {
            let task = task.to_owned();
            let log = Arc::clone(log);
            let last_error = Arc::clone(&last_error);
            readers.push(thread::spawn(move || {
                read_lines(error, |text| {
                    last_error
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .clone_from(&text);
                    log(LogLine {
                        task: task.clone(),
                        stream: Stream::Error,
                        text,
                    });
                });
            }));
        }
        Ok(Self {
            child,
            ready,
            last_error,
            readers,
        })
    }

    /// Waits for the ready notice. `Ok(None)`: it did not come in time; `Err`: the process has
    /// ended.
    pub(super) fn wait_ready(
        &mut self,
        deadline: Instant,
    ) -> io::Result<Result<Option<String>, ExitStatus>> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if let Ok(notice) = self.ready.recv_timeout(left.min(POLL_INTERVAL)) {
                return Ok(Ok(Some(notice)));
            }
            if let Some(status) = self.child.try_wait()? {
                self.join_readers();
                return Ok(Err(status));
            }
            if left.is_zero() {
                return Ok(Ok(None));
            }
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The last line of the log.
    pub(super) fn last_error(&self) -> String {
        self.last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Asks the process to stop; it is no error if it has ended already.
    pub(super) fn terminate(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            // The process has not been waited for, so its id cannot belong to another one.
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
    }

    /// Ends the process at once and collects it.
    pub(super) fn kill(&mut self) -> io::Result<ExitStatus> {
        self.child.kill()?;
        let status = self.child.wait()?;
        self.join_readers();
        Ok(status)
    }

    /// Waits for the end until `deadline`, then ends the process.
    pub(super) fn wait_or_kill(&mut self, deadline: Instant) -> io::Result<ExitStatus> {
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                self.join_readers();
                return Ok(status);
            }
            thread::sleep(POLL_INTERVAL.min(deadline.saturating_duration_since(Instant::now())));
        }
        self.kill()
    }

    fn join_readers(&mut self) {
        for reader in self.readers.drain(..) {
            // A reader that panicked has lost lines of a log, nothing else.
            let _ = reader.join();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

fn offer_ready(sender: &Sender<String>, text: &str) {
    if text.starts_with(READY_PREFIX) {
        // Nobody waits for a second notice.
        let _ = sender.send(text.to_owned());
    }
}

fn read_lines(source: impl Read, mut take: impl FnMut(String)) {
    let mut reader = BufReader::new(source);
    let mut line = Vec::new();
    while matches!(reader.read_until(b'\n', &mut line), Ok(read) if read > 0) {
        take(String::from_utf8_lossy(&line).trim_end().to_owned());
        line.clear();
    }
}

/// How the ready notice of `grpcxx-server` begins.
const READY_PREFIX: &str = "grpcxx-server ready";
const POLL_INTERVAL: Duration = Duration::from_millis(10);
