//! Measuring in short windows, so that those in which other processes took the CPUs can be left out.

use std::fs::{File, read_dir};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Times operations that follow one another, in windows of equal numbers of operations.
///
/// A window counts if the threads of this process did not have to wait for a CPU in it. Where none is so, the
/// least disturbed tenth counts. Only threads that have run in the first window are watched: whoever takes a CPU
/// from them makes them wait, and each look takes half a microsecond.
pub(crate) struct Meter {
    waiting: Waiting,
    per_window: usize,
    in_window: usize,
    begun: Instant,
    waited_ns: u64,
    latencies_ns: Vec<u64>,
    windows: Vec<Window>,
    calls: Vec<u64>,
}

/// What a [`Meter`] has seen.
pub(crate) struct Measure {
    /// Median time of one operation over the windows that count, in seconds.
    pub(crate) seconds: f64,
    /// Quantiles of the operations' latencies in those windows, in microseconds; 0 if none were given.
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

/// The threads of this process that run, with the time that each had run when the first window began. How long they have
/// waited for a CPU is what the scheduler counts.
struct Waiting(Vec<(File, u64)>);

impl Meter {
    /// A meter for at most `windows` windows of `per_window` operations. Threads that exist now may be watched.
    pub(crate) fn new(windows: usize, per_window: usize) -> Self {
        let waiting = Waiting::of_all_threads();
        Self {
            waited_ns: waiting.total_ns(),
            waiting,
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
        if self.windows.is_empty() {
            self.waiting.begin();
        }
        self.waited_ns = self.waiting.total_ns();
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
        if self.windows.is_empty() {
            self.waiting.forget_sleepers(now - self.begun);
            self.waited_ns = self.waiting.total_ns();
        }
        let waited_ns = self.waiting.total_ns();
        self.windows.push(Window {
            elapsed: now - self.begun,
            waited: Duration::from_nanos(waited_ns - self.waited_ns),
            first_latency: self.latencies_ns.len() - self.per_window,
        });
        self.in_window = 0;
        self.waited_ns = waited_ns;
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
        let open = |task: std::io::Result<std::fs::DirEntry>| {
            let file = File::open(task.ok()?.path().join("schedstat")).ok()?;
            let [ran_ns, _] = schedstat(&file)?;
            Some((file, ran_ns))
        };
        Self(tasks.filter_map(open).collect())
    }

    /// Begins to see who runs.
    fn begin(&mut self) {
        for (file, first_ns) in &mut self.0 {
            if let Some([ran_ns, _]) = schedstat(file) {
                *first_ns = ran_ns;
            }
        }
    }

    /// Watches only those that have run for a tenth of this time since.
    fn forget_sleepers(&mut self, elapsed: Duration) {
        let ran_enough_ns = elapsed.as_nanos() as u64 / 10;
        self.0.retain(|(file, first_ns)| {
            schedstat(file)
                .is_some_and(|[ran_ns, _]| ran_ns.saturating_sub(*first_ns) >= ran_enough_ns)
        });
    }

    fn total_ns(&self) -> u64 {
        let waited = |(file, _): &(File, u64)| Some(schedstat(file)?[1]);
        self.0.iter().filter_map(waited).sum()
    }
}

/// How long a thread has run and how long it has waited for a CPU, in nanoseconds: the first numbers of
/// `/proc/*/schedstat`. A thread that has ended does neither.
fn schedstat(file: &File) -> Option<[u64; 2]> {
    let mut text = [0; 128];
    let len = file.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(&text[..len]).ok()?;
    let mut numbers = text.split_whitespace().map_while(|word| word.parse().ok());
    Some([numbers.next()?, numbers.next()?])
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
