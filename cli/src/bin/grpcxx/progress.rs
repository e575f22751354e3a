use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar on standard error for what takes longer than a second, if a person looks at it.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    shows_at: Option<Instant>,
}

impl Progress {
    /// Counts up to `bytes`.
    pub(crate) fn new(what: &'static str, bytes: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style);
        }
        bar.set_message(what);
        Self {
            bar,
            shows_at: std::io::stderr()
                .is_terminal()
                .then(|| Instant::now() + PATIENCE),
        }
    }

    /// `bytes` more are done.
    pub(crate) fn add(&mut self, bytes: u64) {
        if self.shows_at.is_some_and(|at| at <= Instant::now()) {
            self.shows_at = None;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.inc(bytes);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

const TEMPLATE: &str =
    "{msg} [{bar:32}] {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}";
const PATIENCE: Duration = Duration::from_secs(1);
