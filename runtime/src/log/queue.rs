//! A bounded queue of log lines to a thread that writes them.
//!
//! The crate `tracing-appender` has such a queue; but it counts lines where memory counts, never
//! says in the log what it lost, and prints at its end to a standard output that may be gone, which
//! panics.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use super::{LINES_LOST, tell_suppressed};

/// Lines on their way to a thread that writes them. Pushing never waits: a line that finds no place
/// is lost, counted, and a later line says so. A forked child, which has not that thread, starts a
/// queue of its own.
#[derive(Debug)]
pub struct LogQueue<L> {
    sender: SyncSender<Queued<L>>,
    shared: Arc<Shared>,
    writer: ThreadId,
}

#[derive(Debug)]
struct Queued<L> {
    line: L,
    bytes: usize,
}

#[derive(Debug)]
struct Shared {
    /// Memory of the lines on their way.
    bytes: AtomicUsize,
    pushed: AtomicU64,
    /// Lines that were taken out, written or not.
    taken: Mutex<u64>,
    progress: Condvar,
    /// The value of [`LINES_LOST`] that the log last told.
    lost_told: AtomicU64,
}

/// The thread that writes.
struct Writer<L, W> {
    receiver: Receiver<Queued<L>>,
    shared: Arc<Shared>,
    write: W,
    /// When it is time to look for what the log has to say of itself.
    notices_due: Option<Instant>,
}

impl<L> Clone for LogQueue<L> {
    fn clone(&self) -> Self {
        Self {
            sender: self.sender.clone(),
            shared: Arc::clone(&self.shared),
            writer: self.writer,
        }
    }
}

impl<L: Send + 'static> LogQueue<L> {
    /// Starts the thread. `write` may block; it says whether the line got to where it belongs.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(write: impl FnMut(L) -> bool + Send + 'static) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(LINES_MAX);
        let shared = Arc::new(Shared::new());
        let writer = Writer {
            receiver,
            shared: Arc::clone(&shared),
            write,
            notices_due: None,
        };
        let thread = thread::Builder::new()
            .name("grpcxx-log".to_owned())
            .spawn(move || writer.run())?;
        Ok(Self {
            sender,
            shared,
            writer: thread.thread().id(),
        })
    }

    /// Gives a line that takes `bytes` of memory to the thread, unless the queue is full.
    pub fn push(&self, line: L, bytes: usize) {
        let queued = self.shared.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if queued <= BYTES_MAX && self.sender.try_send(Queued { line, bytes }).is_ok() {
            self.shared.pushed.fetch_add(1, Ordering::Release);
        } else {
            self.shared.bytes.fetch_sub(bytes, Ordering::Relaxed);
            LINES_LOST.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all lines pushed so far are written, at most as long as `timeout` says, and says
    /// whether they are. The thread that writes does not wait for itself.
    pub fn flush(&self, timeout: Duration) -> bool {
        if thread::current().id() == self.writer {
            return false;
        }
        tell_suppressed(Instant::now(), true);
        self.shared.tell_lost();
        let pushed = self.shared.pushed.load(Ordering::Acquire);
        let taken = self.shared.taken.lock();
        let taken = taken.unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .shared
            .progress
            .wait_timeout_while(taken, timeout, |taken| *taken < pushed);
        let (_taken, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        !waited.timed_out()
    }
}

impl Shared {
    fn new() -> Self {
        Self {
            bytes: AtomicUsize::new(0),
            pushed: AtomicU64::new(0),
            taken: Mutex::new(0),
            progress: Condvar::new(),
            // What was lost before is not this queue's, as in a child what its parent lost.
            lost_told: AtomicU64::new(LINES_LOST.load(Ordering::Relaxed)),
        }
    }

    fn tell_lost(&self) {
        let lost = LINES_LOST.load(Ordering::Relaxed);
        if self.lost_told.swap(lost, Ordering::Relaxed) < lost {
            tracing::warn!(target: TARGET, lost, "log lines were lost since the start: nobody took them in time");
        }
    }
}

impl<L, W: FnMut(L) -> bool> Writer<L, W> {
    fn run(mut self) {
        loop {
            let received = match self.notices_due {
                None => self.receiver.recv().map_err(RecvTimeoutError::from),
                Some(at) => {
                    let left = at.saturating_duration_since(Instant::now());
                    self.receiver.recv_timeout(left)
                }
            };
            match received {
                Ok(queued) => self.take(queued),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.notices_due.is_some_and(|at| at <= Instant::now()) {
                self.shared.tell_lost();
                self.notices_due = tell_suppressed(Instant::now(), false);
            }
        }
    }

    fn take(&mut self, queued: Queued<L>) {
        if (self.write)(queued.line) {
            self.notices_due
                .get_or_insert_with(|| Instant::now() + NOTICE_DELAY);
        } else {
            LINES_LOST.fetch_add(1, Ordering::Relaxed);
        }
        self.shared.bytes.fetch_sub(queued.bytes, Ordering::Relaxed);
        let taken = self.shared.taken.lock();
        *taken.unwrap_or_else(PoisonError::into_inner) += 1;
        self.shared.progress.notify_all();
    }
}

/// What the log says of itself says so.
pub(super) const TARGET: &str = "grpcxx_runtime::log";
/// Lines that wait at most.
const LINES_MAX: usize = 4096;
/// Memory of lines that wait at most.
const BYTES_MAX: usize = 4 << 20;
/// Time from a written line to the first look for what was lost.
const NOTICE_DELAY: Duration = Duration::from_secs(1);

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc::{channel, sync_channel};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn lines_are_written_in_order_before_a_flush_returns() {
        let (sender, written) = channel();
        let queue = LogQueue::start(move |line: usize| sender.send(line).is_ok()).unwrap();
        for line in 0..1000 {
            queue.push(line, 8);
        }
        assert!(queue.flush(PATIENCE));
        let written: Vec<usize> = written.try_iter().collect();
        assert_eq!(written, (0..1000).collect::<Vec<_>>());
        assert_eq!(queue.shared.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_writer_that_hangs_holds_up_neither_who_logs_nor_who_flushes() {
        let (hold, held) = sync_channel::<()>(0);
        let queue = LogQueue::start(move |_line: usize| held.recv().is_ok()).unwrap();
        let before = LINES_LOST.load(Ordering::Relaxed);
        for line in 0..2 * LINES_MAX {
            queue.push(line, 8);
        }
        let lost = LINES_LOST.load(Ordering::Relaxed) - before;
        assert!(lost >= LINES_MAX as u64 - 1, "{lost}");
        assert!(!queue.flush(Duration::from_millis(50)));
        drop(hold);
        assert!(queue.flush(PATIENCE));
    }

    #[test]
    fn few_long_lines_are_too_many_as_well() {
        let (hold, held) = sync_channel::<()>(0);
        let queue = LogQueue::start(move |_line: ()| held.recv().is_ok()).unwrap();
        for _ in 0..9 {
            queue.push((), BYTES_MAX / 8);
        }
        let bytes = queue.shared.bytes.load(Ordering::Relaxed);
        assert!(bytes <= BYTES_MAX, "{bytes}");
        assert_eq!(queue.shared.pushed.load(Ordering::Relaxed), 8);
        drop(hold);
    }

    #[test]
    fn the_writer_itself_does_not_wait_for_its_lines() {
        let (sender, queue) = channel::<LogQueue<()>>();
        let (told, flushed) = channel();
        let started = LogQueue::start(move |()| {
            let queue = queue.recv().expect("the queue comes after the line");
            told.send(queue.flush(PATIENCE)).is_ok()
        });
        let started = started.unwrap();
        started.push((), 0);
        sender.send(started.clone()).unwrap();
        assert_eq!(flushed.recv_timeout(PATIENCE), Ok(false));
    }
}
