//! On which thread C hears of what: not inside of the function that began a call, and never blocking a shard.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use grpcxx_rpc::{Code, Status};

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

/// Runs code soon on a thread of its own kind, one after the other.
pub(crate) fn later(code: impl FnOnce() + Send + 'static) {
    let sender = THREAD.get_or_init(start);
    let mut code: Job = Box::new(code);
    if let Some(sender) = sender {
        match sender.send(code) {
            Ok(()) => return,
            Err(refused) => code = refused.0,
        }
    }
    // Without a thread it is better to tell at once than never.
    code();
}

type Job = Box<dyn FnOnce() + Send>;

fn start() -> Option<Sender<Job>> {
    let (sender, receiver) = channel::<Job>();
    thread::Builder::new()
        .name("grpcxx-notices".to_owned())
        .spawn(move || {
            for job in receiver {
                crate::boundary::guarded((), job);
            }
        })
        .ok()
        .map(|_| sender)
}

static THREAD: OnceLock<Option<Sender<Job>>> = OnceLock::new();

thread_local! {
    static BEGINNING: Cell<bool> = const { Cell::new(false) };
    static CALLING_BACK: Cell<bool> = const { Cell::new(false) };
}
