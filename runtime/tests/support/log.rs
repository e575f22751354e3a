//! What a test's process logs.

use std::io::{self, Write};
use std::sync::{Condvar, Mutex, OnceLock};
use std::time::Duration;

/// The lines so far. Tests of one process share them.
#[derive(Default)]
pub(crate) struct Log {
    text: Mutex<String>,
    grown: Condvar,
}

struct Writer(&'static Log);

impl Write for Writer {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0
            .text
            .lock()
            .unwrap()
            .push_str(&String::from_utf8_lossy(line));
        self.0.grown.notify_all();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// The log of this process, which begins with the first call.
    pub(crate) fn start() -> &'static Self {
        static LOG: OnceLock<Log> = OnceLock::new();
        static STARTED: OnceLock<()> = OnceLock::new();
        let log = LOG.get_or_init(Log::default);
        STARTED.get_or_init(|| {
            let subscriber = tracing_subscriber::fmt().with_ansi(false);
            subscriber.with_writer(move || Writer(log)).init();
        });
        log
    }

    /// The lines with all of these parts, once there is one.
    pub(crate) fn await_lines(&self, parts: &[&str]) -> Vec<String> {
        let mut text = self.text.lock().unwrap();
        loop {
            let lines = text.lines();
            let found = lines.filter(|line| parts.iter().all(|part| line.contains(part)));
            let found: Vec<String> = found.map(str::to_owned).collect();
            if !found.is_empty() {
                return found;
            }
            let (grown, waited) = self.grown.wait_timeout(text, PATIENCE).unwrap();
            assert!(!waited.timed_out(), "{parts:?} is not in {grown}");
            text = grown;
        }
    }
}

/// For machines that are busy with other things.
const PATIENCE: Duration = Duration::from_secs(30);
