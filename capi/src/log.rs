#![expect(unsafe_code, reason = "exported functions over pointers")]
//! The log of all engines of a process, for C and for programs in Rust that share a process with
//! it.

use std::ffi::{CString, c_char, c_void};
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Once, PoisonError, RwLock};
use std::time::Duration;

use grpcxx_memory::forks::PerProcess;
use grpcxx_runtime::log::{LogQueue, admit};
use tracing::field::{Field, Visit};
use tracing::metadata::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, set_global_default};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::boundary::{Context, guarded};
use crate::notices::is_calling_back;
use crate::status::c_string;

type LogFn = extern "C" fn(*mut c_void, i32, *const c_char, *const c_char);

/// Takes lines of a level (1: error, to 5: trace) and a module, on a thread that does nothing else.
pub type Sink = Arc<dyn Fn(i32, &str, &str) + Send + Sync>;

/// The log of one process: its thread and who takes the lines. In a child it goes on with whoever
/// took those of its parent, on a thread of the child.
struct Log {
    /// Without a thread there is no log; whoever lacks one hears so from the engine's start.
    queue: Option<LogQueue<CLine>>,
    target: RwLock<Option<Target>>,
}

/// Where lines go.
#[derive(Clone)]
struct Target {
    to: Receiver,
    /// How many targets there were before.
    number: u64,
}

/// Who takes lines.
#[derive(Clone)]
enum Receiver {
    C(LogFn, Context),
    Rust(Sink),
}

/// A line on its way to C.
struct CLine {
    target: Target,
    level: i32,
    module: CString,
    message: CString,
}

impl Log {
    /// That of this process.
    fn own() -> &'static Self {
        LOG.get_or_make(|parents| {
            // None if it was about to change at the fork.
            let target = parents.and_then(|parents| parents.target.try_read().ok()?.clone());
            Self {
                queue: LogQueue::start(deliver).ok(),
                target: RwLock::new(target),
            }
        })
    }
}

/// Hands the events of all crates of the engine to the thread that calls C.
struct Lines;

/// An event as one line: the message, then the other fields as name=value.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Subscriber for Lines {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if is_ours(metadata) {
            Interest::sometimes()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        is_ours(metadata) && number(metadata.level()) <= LEVEL.load(Ordering::Relaxed)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        None
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event_enabled(&self, event: &Event<'_>) -> bool {
        admit(event)
    }

    fn event(&self, event: &Event<'_>) {
        let log = Log::own();
        let Some(queue) = &log.queue else {
            return;
        };
        // It is held until the line is in the queue: who changes the target then knows that all
        // lines for the old one are there.
        let target = log.target.read().unwrap_or_else(PoisonError::into_inner);
        let Some(target) = target.clone() else {
            return;
        };
        let mut line = Line::default();
        event.record(&mut line);
        line.message.push_str(&line.fields);
        let metadata = event.metadata();
        let (module, message) = (c_string(metadata.target()), c_string(&line.message));
        let bytes = module.as_bytes().len() + message.as_bytes().len();
        let level = i32::from(number(metadata.level()));
        queue.push(
            CLine {
                target,
                level,
                module,
                message,
            },
            bytes,
        );
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let (text, name) = match field.name() {
            "message" => (&mut self.message, None),
            name => (&mut self.fields, Some(name)),
        };
        // Writing to a string cannot fail.
        let _ = match name {
            Some(name) => write!(text, " {name}={value:?}"),
            None => write!(text, "{value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.is_event() && metadata.target().starts_with("grpcxx")
}

fn number(level: &Level) -> u8 {
    match *level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        Level::DEBUG => 4,
        Level::TRACE => 5,
    }
}

/// Gives a line to C, unless its target has been given up.
fn deliver(line: CLine) -> bool {
    let CLine {
        target,
        level,
        module,
        message,
    } = line;
    if target.number < GIVEN_UP_BELOW.load(Ordering::Acquire) {
        return false;
    }
    match target.to {
        Receiver::C(log, user) => log(user.0, level, module.as_ptr(), message.as_ptr()),
        Receiver::Rust(sink) => sink(level, &module.to_string_lossy(), &message.to_string_lossy()),
    }
    true
}

/// Gives the lines logged so far a short time to reach who takes them, and says whether they have;
/// callbacks, which must not block, give them none.
pub fn flush() -> bool {
    match LOG.get().and_then(|log| log.queue.as_ref()) {
        Some(queue) => !is_calling_back() && queue.flush(FLUSH_TIMEOUT),
        None => true,
    }
}

/// Sends what is logged from now on, down to a level (0: nothing, to 5: trace), to `sink`, in the
/// place of whoever took it before.
pub fn send_to(level: u8, sink: Option<Sink>) {
    change(level, sink.map(Receiver::Rust));
}

/// Sends what is logged from now on to `to`. Lines logged before reach the old target or are given
/// up.
fn set_target(to: Option<Receiver>) {
    let target = &Log::own().target;
    let mut current = target.write().unwrap_or_else(PoisonError::into_inner);
    let number = TARGETS.fetch_add(1, Ordering::Relaxed);
    *current = to.map(|to| Target { to, number });
    drop(current);
    if !flush() {
        GIVEN_UP_BELOW.fetch_max(number, Ordering::Release);
    }
}

fn change(level: u8, to: Option<Receiver>) {
    INSTALL.call_once(|| {
        // A Rust program that holds this crate may have a subscriber of its own, which then stays.
        let _ = set_global_default(Arc::new(Lines));
    });
    let level = if to.is_some() { level } else { 0 };
    // What was held back belongs to the old target.
    flush();
    LEVEL.store(level, Ordering::Relaxed);
    set_target(to);
}

/// How long lines may take to reach C when its function changes or an engine ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

static LEVEL: AtomicU8 = AtomicU8::new(0);
static TARGETS: AtomicU64 = AtomicU64::new(0);
/// Lines for targets with lower numbers are not delivered any more.
static GIVEN_UP_BELOW: AtomicU64 = AtomicU64::new(0);
static LOG: PerProcess<Log> = PerProcess::new();
static INSTALL: Once = Once::new();

#[unsafe(no_mangle)]
pub(crate) extern "C" fn grpcxx_log_set(level: i32, log: Option<LogFn>, user: *mut c_void) {
    let level = u8::try_from(level.clamp(0, 5)).unwrap_or(0);
    guarded((), || {
        change(level, log.map(|log| Receiver::C(log, Context(user))))
    });
}
