//! Measuring in short windows, so that those in which other processes took the CPUs can be left
//! out.

use std::fs::{File, read_dir};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Times operations that follow one another, in windows of equal numbers of operations.
///
/// A window counts if the threads of this process did not have to wait for a CPU in it. Where none
/// is so, the least disturbed tenth counts. Once some windows are over, only threads that do not
/// sleep are watched: whoever takes a CPU from them makes them wait, and each look takes half a
/// microsecond.
pub(crate) struct Meter {
    waiting: Waiting,
    per_window: usize,
    in_window: usize,
    begun: Instant,
    latencies_ns: Vec<u64>,
    windows: Vec<Window>,
    calls: Vec<u64>,
}

/// What a [`Meter`] has seen.
pub(crate) struct Measure {
    /// Median time of one operation over the windows that count, in seconds.
    pub(crate) seconds: f64,
    /// Quantiles of the operations' latencies in those windows, in microseconds; 0 if none were
    /// given.
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Share of the windows that were not disturbed.
    pub(crate) quiet: f64,
}

struct Window {
    elapsed: Duration,
    waited: Duration,
    first_latency: usize,
}

/// The threads of this process that are watched.
struct Waiting(Vec<Thread>);

struct Thread {
    stat: File,
    schedstat: File,
    /// How long it had waited for a CPU when it was last looked at.
    waited_ns: u64,
}

impl Meter {
    /// A meter for at most `windows` windows of `per_window` operations. Threads that exist now may
    /// be watched.
    pub(crate) fn new(windows: usize, per_window: usize) -> Self {
        Self {
            waiting: Waiting::of_all_threads(),
            per_window,
            in_window: 0,
            begun: Instant::now(),
            latencies_ns: Vec::with_capacity((windows + 1) * per_window),
            windows: Vec::with_capacity(windows + 1),
            calls: Vec::new(),
        }
    }

    /// Starts a window; one that is not complete is forgotten.
    pub(crate) fn begin_window(&mut self) {
        self.in_window = 0;
        self.latencies_ns
            .truncate(self.windows.len() * self.per_window);
        self.waiting.look();
        self.begun = Instant::now();
    }

    /// Notes the end of an operation that took `latency`.
    pub(crate) fn note(&mut self, now: Instant, latency: Duration) {
        self.latencies_ns.push(latency.as_nanos() as u64);
        self.in_window += 1;
        if self.in_window == self.per_window {
            self.end_window(now);
        }
    }

    /// Notes the end of a whole window that operations with these latencies made up.
    pub(crate) fn note_window(&mut self, now: Instant, latencies_ns: impl Iterator<Item = u64>) {
        self.latencies_ns.extend(latencies_ns.take(self.per_window));
        self.end_window(now);
    }

    pub(crate) fn finish(mut self) -> Measure {
        let is_quiet = |window: &Window| window.waited * 100 < window.elapsed;
        let quiet = self.windows.iter().filter(|w| is_quiet(w)).count();
        let share = quiet as f64 / self.windows.len().max(1) as f64;
        let counting = quiet.max(self.windows.len().div_ceil(10));
        self.windows
            .sort_by(|a, b| a.disturbance().total_cmp(&b.disturbance()));
        let mut seconds: Vec<f64> = Vec::new();
        for window in &self.windows[..counting] {
            seconds.push(window.elapsed.as_secs_f64() / self.per_window as f64);
            let latencies = window.first_latency..window.first_latency + self.per_window;
            self.calls.extend_from_slice(&self.latencies_ns[latencies]);
        }
        self.calls.sort_unstable();
        Measure {
            seconds: median(seconds),
            p50_us: self.quantile_us(0.5),
            p99_us: self.quantile_us(0.99),
            quiet: share,
        }
    }

    fn end_window(&mut self, now: Instant) {
        self.windows.push(Window {
            elapsed: now - self.begun,
            waited: self.waiting.look(),
            first_latency: self.latencies_ns.len() - self.per_window,
        });
        // Until only both ends are left: who begins the calls of a batch goes to sleep a little
        // later.
        if self.windows.len() % WINDOWS_OF_A_LOOK == 1 && self.waiting.0.len() > 2 {
            self.waiting.forget_sleepers();
        }
        self.in_window = 0;
        self.begun = Instant::now();
    }

    fn quantile_us(&self, quantile: f64) -> f64 {
        let last = self.calls.len().saturating_sub(1);
        let at = (last as f64 * quantile).round() as usize;
        self.calls.get(at).copied().unwrap_or(0) as f64 / 1e3
    }
}

impl Window {
    fn disturbance(&self) -> f64 {
        self.waited.as_secs_f64() / self.elapsed.as_secs_f64()
    }
}

impl Waiting {
    fn of_all_threads() -> Self {
        let tasks = read_dir("/proc/self/task").expect("Linux has /proc");
        let watch = |task: std::io::Result<std::fs::DirEntry>| {
            let directory = task.ok()?.path();
            Some(Thread {
                stat: File::open(directory.join("stat")).ok()?,
                schedstat: File::open(directory.join("schedstat")).ok()?,
                waited_ns: 0,
            })
        };
        Self(tasks.filter_map(watch).collect())
    }

    /// Watches only threads that run now, or would if they had a CPU.
    fn forget_sleepers(&mut self) {
        self.0.retain(Thread::runs);
        assert!(self.0.len() >= 2, "both ends spin");
    }

    /// How long the threads together have waited for a CPU since the last look.
    fn look(&mut self) -> Duration {
        let waited_ns = self.0.iter_mut().filter_map(Thread::look_ns).sum();
        Duration::from_nanos(waited_ns)
    }
}

impl Thread {
    /// By the third field of `/proc/*/stat`, behind a name in parentheses; the kernel may have work
    /// of its own for it. What a thread has run is written only when it stops, or every few
    /// milliseconds.
    fn runs(&self) -> bool {
        let mut text = [0; 512];
        let fields = read_in(&self.stat, &mut text).and_then(|text| text.rsplit_once(") "));
        fields.is_some_and(|(_, fields)| fields.starts_with(['R', 'D']))
    }

    /// By the second number of `/proc/*/schedstat`. A thread that has ended waits no more.
    fn look_ns(&mut self) -> Option<u64> {
        let mut text = [0; 128];
        let text = read_in(&self.schedstat, &mut text)?;
        let waited_ns: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
        let before_ns = std::mem::replace(&mut self.waited_ns, waited_ns);
        Some(waited_ns - before_ns)
    }
}

/// What a file has now, without an allocation: those of calls are counted.
fn read_in<'a>(file: &File, memory: &'a mut [u8]) -> Option<&'a str> {
    let len = file.read_at(memory, 0).ok()?;
    std::str::from_utf8(&memory[..len]).ok()
}

/// Who sleeps is looked for once in so many windows.
const WINDOWS_OF_A_LOOK: usize = 8;

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
