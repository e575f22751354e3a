use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal, Write};
use std::panic;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use grpcxx_runtime::config::LogFormat;
use grpcxx_runtime::log::{LogQueue, admit};
use grpcxx_runtime::trace;
use grpcxx_telemetry::Telemetry;
use signal_hook::consts::SIGXFSZ;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

use super::output::write_whole;
use super::{Exit, Failure, OrExit, Outcome};

/// The log of a program. When it is dropped, the last lines get a short time to be written.
#[derive(Clone, Debug)]
#[must_use = "the last lines are written when this is dropped"]
pub(crate) struct Log {
    lines: LogQueue<Vec<u8>>,
}

/// Holds back lines that are like many before them.
struct Limit;

/// Takes a formatted line.
pub(crate) struct Line<'a> {
    lines: &'a LogQueue<Vec<u8>>,
}

/// Sends log lines that pass `filter` to standard error, on a thread of its own: whoever logs never
/// waits, and never fails. Spans of calls go to `telemetry`, and are no part of the log. It comes
/// back as the second of the two, to be dropped first: the log says if the last spans are lost.
pub(crate) fn start_log(
    filter: &str,
    format: LogFormat,
    telemetry: Option<Telemetry>,
) -> Outcome<(Log, Option<Telemetry>)> {
    let mut filter = EnvFilter::try_new(filter).map_err(|error| {
        Failure::new(
            Exit::Config,
            format!(
                "GRPCXX_LOG is {filter:?}: {error}; write error, warn, info, debug or trace, or filters such as info,grpcxx_rpc=debug"
            ),
        )
    })?;
    if telemetry.is_some() {
        let spans = format!("{}=info", trace::TARGET).parse();
        filter = filter.add_directive(spans.or_exit(Exit::Software)?);
    }
    let log = Log::start()?;
    // What goes wrong inside would be printed to standard error, which may hang or be gone.
    let layer = fmt::layer()
        .with_writer(log.clone())
        .with_target(false)
        .log_internal_errors(false);
    let is_logged = filter_fn(|metadata| metadata.target() != trace::TARGET);
    let registry = tracing_subscriber::registry()
        .with(filter)
        .with(Limit)
        .with(telemetry.as_ref().map(Telemetry::layer));
    let started = match format {
        LogFormat::Text => {
            let is_terminal = io::stderr().is_terminal();
            let layer = layer.with_ansi(is_terminal).with_filter(is_logged);
            registry.with(layer).try_init()
        }
        LogFormat::Json => registry
            .with(layer.json().with_filter(is_logged))
            .try_init(),
    };
    started.or_exit_at(Exit::Software, || "cannot start the log".to_owned())?;
    panic::set_hook(Box::new(log_panic));
    // A log that has grown to the limit of file sizes is full, and otherwise ends the process.
    // Whether the signal came is of no use: the write that it is about fails.
    let ignored = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGXFSZ, ignored)
        .or_exit_at(Exit::System, || "cannot catch SIGXFSZ".to_owned())?;
    Ok((log, telemetry))
}

impl Log {
    /// Begins to write lines to standard error.
    pub(crate) fn start() -> Outcome<Self> {
        let write = |line: Vec<u8>| write_whole(&mut io::stderr(), &line).is_ok();
        let lines = LogQueue::start(write)
            .or_exit_at(Exit::System, || "cannot start the log's thread".to_owned())?;
        Ok(Self { lines })
    }

    /// Writes a line as it is.
    pub(crate) fn line(&self, mut line: String) {
        line.push('\n');
        let bytes = line.len();
        self.lines.push(line.into_bytes(), bytes);
    }

    /// Gives lines a short time to be written.
    pub(crate) fn flush(&self) {
        self.lines.flush(FLUSH_TIMEOUT);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.flush();
    }
}

impl<S: Subscriber> Layer<S> for Limit {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        admit(event)
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { lines: &self.lines }
    }
}

impl Write for Line<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.lines.push(line.to_vec(), line.len());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The standard hook would write to standard error on the thread that panics, and wait there if
/// nobody reads.
fn log_panic(panic: &panic::PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("without a name");
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        tracing::error!(thread, "{panic}\n{backtrace}");
    } else {
        tracing::error!(thread, "{panic}");
    }
}

/// How long the end of the program waits for the last lines.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);
