//! On which thread C hears of what: not inside of the function that began a call, and never
//! blocking a shard.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use grpcxx_memory::forks::PerProcess;
use grpcxx_rpc::{Code, Status};

use crate::boundary::guarded;

/// Runs code that begins a call: endings that come up inside are told on another thread.
pub(crate) fn beginning<T>(code: impl FnOnce() -> T) -> T {
    let before = BEGINNING.replace(true);
    let result = code();
    BEGINNING.set(before);
    result
}

/// Whether this thread is about to begin a call.
pub(crate) fn is_beginning() -> bool {
    BEGINNING.get()
}

/// Runs a callback of C that must not block.
pub(crate) fn calling_back<T>(code: impl FnOnce() -> T) -> T {
    let before = CALLING_BACK.replace(true);
    // What a callback begins is not what the thread was about to begin.
    let beginning = BEGINNING.replace(false);
    let result = code();
    BEGINNING.set(beginning);
    CALLING_BACK.set(before);
    result
}

/// Whether this thread is in a callback that must not block.
pub(crate) fn is_calling_back() -> bool {
    CALLING_BACK.get()
}

/// Refuses to block in a callback.
pub(crate) fn may_block(function: &str) -> Result<(), Status> {
    if !is_calling_back() {
        return Ok(());
    }
    Err(Status::new(
        Code::FailedPrecondition,
        format!("{function} blocks, and must not be called from a callback of the engine"),
    ))
}

/// Runs code soon on a thread for such things, one after the other.
pub(crate) fn later(code: impl FnOnce() + Send + 'static) {
    send(Notice {
        at: None,
        job: Box::new(code),
    });
}

/// Runs code on a thread for such things, one after the other, once `delay` has passed.
pub fn after(delay: Duration, code: impl FnOnce() + Send + 'static) {
    send(Notice {
        at: Instant::now().checked_add(delay),
        job: Box::new(code),
    });
}

type Job = Box<dyn FnOnce() + Send>;

struct Notice {
    at: Option<Instant>,
    job: Job,
}

fn send(notice: Notice) {
    let refused = match THREAD.get_or_make(|_parents| start()) {
        Some(sender) => sender.send(notice).err().map(|refused| refused.0),
        None => Some(notice),
    };
    if let Some(notice) = refused {
        // Without a thread it is better to tell at once than never.
        (notice.job)();
    }
}

fn start() -> Option<Sender<Notice>> {
    let (sender, receiver) = channel();
    thread::Builder::new()
        .name("grpcxx-notices".to_owned())
        .spawn(move || run(&receiver))
        .ok()
        .map(|_| sender)
}

fn run(notices: &Receiver<Notice>) {
    let mut delayed: BTreeMap<(Instant, u64), Job> = BTreeMap::new();
    let mut number = 0;
    loop {
        let next = delayed.first_key_value().map(|(&(at, _), _)| at);
        let received = match next {
            Some(at) => notices.recv_timeout(at.saturating_duration_since(Instant::now())),
            None => notices.recv().map_err(RecvTimeoutError::from),
        };
        match received {
            Ok(Notice { at: Some(at), job }) => {
                number += 1;
                delayed.insert((at, number), job);
            }
            Ok(Notice { at: None, job }) => guarded((), job),
            Err(RecvTimeoutError::Timeout) => {
                if let Some((_, job)) = delayed.pop_first() {
                    guarded((), job);
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    for ((at, _), job) in delayed {
        thread::sleep(at.saturating_duration_since(Instant::now()));
        guarded((), job);
    }
}

static THREAD: PerProcess<Option<Sender<Notice>>> = PerProcess::new();

thread_local! {
    static BEGINNING: Cell<bool> = const { Cell::new(false) };
    static CALLING_BACK: Cell<bool> = const { Cell::new(false) };
}
