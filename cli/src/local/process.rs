use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::group::Group;

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
pub(crate) type LogSink = Arc<dyn Fn(LogLine) + Send + Sync>;

/// A running task: its process, those that it has started, and the threads that read its lines.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    group: Group,
    state: State,
    /// Whether the group was asked to stop, which it is once: a second request often means at once.
    is_asked: bool,
    /// Whether it has outlived SIGKILL, so that nobody waits for it any more.
    is_stuck: bool,
    ready: Receiver<()>,
    last_errors: Arc<Mutex<VecDeque<String>>>,
    readers: Vec<thread::JoinHandle<()>>,
}

/// What came of the wait for the ready notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    Ready,
    /// It did not come while the caller waited.
    NotReady,
    Ended(ExitStatus),
}

/// How far a process has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Runs,
    /// It was collected; those that it has started may still run.
    Ended,
    /// Nobody is left, and the number of the group may be another's.
    Gone,
}

impl Process {
    /// Starts `command` with its own process group, so that the terminal's Ctrl-C reaches only us.
    /// An input that is piped ends when we do.
    pub(crate) fn start(
        command: &mut Command,
        input: Stdio,
        task: &str,
        log: &LogSink,
    ) -> io::Result<Self> {
        use std::os::unix::process::CommandExt;
        let mut child = command
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let (ready_sender, ready) = channel();
        let last_errors = Arc::new(Mutex::new(VecDeque::new()));
        let mut readers = Vec::new();
        if let Some(output) = child.stdout.take() {
            let task = task.to_owned();
            let log = Arc::clone(log);
            readers.push(thread::spawn(move || {
                read_lines(output, |text| {
                    if text.starts_with(READY_PREFIX) {
                        // Nobody waits for a second notice.
                        let _ = ready_sender.send(());
                    }
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
            let last_errors = Arc::clone(&last_errors);
            readers.push(thread::spawn(move || {
                read_lines(error, |text| {
                    remember(&last_errors, &text);
                    log(LogLine {
                        task: task.clone(),
                        stream: Stream::Error,
                        text,
                    });
                });
            }));
        }
        Ok(Self {
            group: Group::of(&child),
            state: State::Runs,
            is_asked: false,
            is_stuck: false,
            child,
            ready,
            last_errors,
            readers,
        })
    }

    /// Waits for the ready notice until `gives_up`, which is asked again and again.
    pub(crate) fn wait_ready(&mut self, mut gives_up: impl FnMut() -> bool) -> io::Result<Begin> {
        loop {
            match self.ready.recv_timeout(POLL_INTERVAL) {
                Ok(()) => return Ok(Begin::Ready),
                Err(RecvTimeoutError::Timeout) => {}
                // Its standard output is closed, and itself may still run.
                Err(RecvTimeoutError::Disconnected) => thread::sleep(POLL_INTERVAL),
            }
            if let Some(status) = self.try_end()? {
                return Ok(Begin::Ended(status));
            }
            if gives_up() {
                return Ok(Begin::NotReady);
            }
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The last line of the log.
    pub(crate) fn last_error(&self) -> String {
        self.last_errors().pop().unwrap_or_default()
    }

    /// The last lines of the log, the latest last.
    pub(crate) fn last_errors(&self) -> Vec<String> {
        let lines = self.last_errors.lock();
        let lines = lines.unwrap_or_else(PoisonError::into_inner);
        lines.iter().cloned().collect()
    }

    /// Looks whether the process has ended, and if so reads its last lines and asks those that it
    /// has started to stop too.
    pub(crate) fn try_end(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.state == State::Runs {
            if !self.group.leader_has_ended()? {
                return Ok(None);
            }
            self.terminate();
            self.child.wait()?;
            self.state = State::Ended;
            self.join_readers();
            self.note_who_is_left();
        }
        self.child.try_wait()
    }

    /// Whether those that the process has started are gone too. From `deadline` on they are ended.
    pub(crate) fn is_gone(&mut self, deadline: Instant) -> bool {
        self.note_who_is_left();
        let is_gone = self.state == State::Gone;
        if !is_gone && Instant::now() >= deadline {
            self.group.signal(Signal::KILL);
        }
        is_gone
    }

    fn note_who_is_left(&mut self) {
        if self.state == State::Ended && !self.group.runs() {
            self.state = State::Gone;
            self.join_readers();
        }
    }

    /// Asks the process, and those it has started, to stop.
    pub(crate) fn terminate(&mut self) {
        if self.state == State::Runs && !std::mem::replace(&mut self.is_asked, true) {
            self.group.signal(Signal::TERM);
        }
    }

    /// Ends the process at once, with those it has started, and collects it.
    pub(crate) fn kill(&mut self) -> io::Result<ExitStatus> {
        self.wait_or_kill(Instant::now())
    }

    /// Waits until `deadline` for the end of the process and of those it has started, then ends
    /// them.
    ///
    /// # Errors
    /// `TimedOut` if the process does not end even so, as in the middle of a call of the system for
    /// a disk that does not answer, or as another user. It is not waited for again.
    pub(crate) fn wait_or_kill(&mut self, deadline: Instant) -> io::Result<ExitStatus> {
        let last = deadline + KILL_TIMEOUT;
        loop {
            let ended = self.try_end()?;
            let is_gone = self.is_gone(deadline);
            let is_late = self.is_stuck || Instant::now() >= last;
            match ended {
                Some(status) if is_gone || is_late => return Ok(status),
                None if is_late => return Err(self.stuck()),
                Some(_) | None => thread::sleep(POLL_INTERVAL),
            }
        }
    }

    fn stuck(&mut self) -> io::Error {
        self.is_stuck = true;
        let (process, waited) = (self.id(), KILL_TIMEOUT);
        let text = format!("process {process} has not ended {waited:?} after SIGKILL");
        io::Error::new(io::ErrorKind::TimedOut, text)
    }

    fn join_readers(&mut self) {
        // A process of another group may still hold the other end.
        let deadline = Instant::now() + READERS_TIMEOUT;
        while Instant::now() < deadline && !self.readers.iter().all(thread::JoinHandle::is_finished)
        {
            thread::sleep(POLL_INTERVAL);
        }
        // A reader that panicked has lost lines of a log, nothing else.
        self.readers.retain(|reader| !reader.is_finished());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Takes a source apart at the ends of lines, and where a bar of progress goes back to the begin of
/// its line. What is longer than a line may be comes in pieces.
fn read_lines(source: impl Read, mut take: impl FnMut(String)) {
    let mut reader = BufReader::new(source);
    let mut line = Vec::new();
    let mut was_bar = false;
    loop {
        let read = match reader.fill_buf() {
            Ok(read) if !read.is_empty() => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok(_) | Err(_) => break,
        };
        let end = read.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
        let taken = end.unwrap_or(read.len()).min(LINE_BYTES_MAX - line.len());
        line.extend_from_slice(&read[..taken]);
        let ended = (end == Some(taken)).then(|| read[taken]);
        reader.consume(taken + usize::from(ended.is_some()));
        if ended.is_none() && line.len() < LINE_BYTES_MAX {
            continue;
        }
        // "\r\n" is one end.
        let is_rest = ended == Some(b'\n') && was_bar && line.is_empty();
        was_bar = ended == Some(b'\r');
        if !is_rest && (ended != Some(b'\r') || !line.is_empty()) {
            take(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
        line.clear();
    }
    if !line.is_empty() {
        take(String::from_utf8_lossy(&line).trim_end().to_owned());
    }
}

fn remember(lines: &Mutex<VecDeque<String>>, text: &str) {
    let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
    if lines.len() == LAST_LINES {
        lines.pop_front();
    }
    lines.push_back(text.chars().take(LAST_LINE_CHARS_MAX).collect());
}

/// Most bytes that come as one line.
const LINE_BYTES_MAX: usize = 64 << 10;
/// How many of the last lines are kept.
const LAST_LINES: usize = 5;
/// Most letters of each that are kept.
const LAST_LINE_CHARS_MAX: usize = 1_000;
/// How long the last lines of a process that has ended may take.
const READERS_TIMEOUT: Duration = Duration::from_millis(500);
/// How the ready notice of `grpcxx-server` begins.
const READY_PREFIX: &str = "grpcxx-server ready";
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How long a process, and what it has started, may take to end after SIGKILL.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_outlives_its_end_is_named_and_not_waited_for() {
        // It leads no group, so that signals do not reach it.
        let child = Command::new("sleep").arg("300").spawn().unwrap();
        let mut process = Process {
            group: Group::of(&child),
            state: State::Runs,
            is_asked: false,
            is_stuck: false,
            child,
            ready: channel().1,
            last_errors: Arc::default(),
            readers: Vec::new(),
        };
        let error = process.kill().unwrap_err();
        let name = format!("process {} has not ended", process.id());
        assert!(error.to_string().contains(&name), "{error}");
        let again = Instant::now();
        process.kill().unwrap_err();
        assert!(again.elapsed() < KILL_TIMEOUT);
        process.child.kill().unwrap();
    }

    fn lines_of(source: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        read_lines(source, |line| lines.push(line));
        lines
    }

    #[test]
    fn bars_of_progress_and_lines_without_an_end_come_in_pieces() {
        let source = b"a\r\n\n 1/2\r 2/2\r\ndone\nrest";
        assert_eq!(lines_of(source), ["a", "", " 1/2", " 2/2", "done", "rest"]);
        let long = lines_of(&vec![b'x'; 2 * LINE_BYTES_MAX + 1]);
        let lengths: Vec<usize> = long.iter().map(String::len).collect();
        assert_eq!(lengths, [LINE_BYTES_MAX, LINE_BYTES_MAX, 1]);
    }
}
