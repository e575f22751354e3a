#![expect(unsafe_code, reason = "exported functions over pointers")]
//! The log of all engines of a process, for C.

use std::ffi::{c_char, c_void};
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Once, PoisonError, RwLock};

use tracing::field::{Field, Visit};
use tracing::metadata::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, set_global_default};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::boundary::{Context, guarded};
use crate::status::c_string;

type LogFn = extern "C" fn(*mut c_void, i32, *const c_char, *const c_char);

/// Where lines go.
#[derive(Clone, Copy)]
struct Target {
    log: LogFn,
    user: Context,
}

/// Hands the events of all crates of the engine to C.
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

    fn event(&self, event: &Event<'_>) {
        let target = *TARGET.read().unwrap_or_else(PoisonError::into_inner);
        let Some(target) = target else {
            return;
        };
        let mut line = Line::default();
        event.record(&mut line);
        line.message.push_str(&line.fields);
        let metadata = event.metadata();
        let (module, message) = (c_string(metadata.target()), c_string(&line.message));
        let level = i32::from(number(metadata.level()));
        (target.log)(target.user.0, level, module.as_ptr(), message.as_ptr());
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

static LEVEL: AtomicU8 = AtomicU8::new(0);
static TARGET: RwLock<Option<Target>> = RwLock::new(None);
static INSTALL: Once = Once::new();

#[unsafe(no_mangle)]
pub(crate) extern "C" fn grpcxx_log_set(level: i32, log: Option<LogFn>, user: *mut c_void) {
    guarded((), || {
        let target = log.map(|log| Target {
            log,
            user: Context(user),
        });
        let level = if target.is_some() {
            u8::try_from(level.clamp(0, 5)).unwrap_or(0)
        } else {
            0
        };
        *TARGET.write().unwrap_or_else(PoisonError::into_inner) = target;
        LEVEL.store(level, Ordering::Relaxed);
        INSTALL.call_once(|| {
            // A Rust program that holds this crate may have a subscriber of its own, which then stays.
            let _ = set_global_default(Arc::new(Lines));
        });
    });
}
