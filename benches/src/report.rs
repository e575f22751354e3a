use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::options::RunOptions;

/// What a run has measured.
#[derive(Debug)]
pub struct Measured {
    /// Time of each step, in nanoseconds.
    pub latency: Histogram<u64>,
    /// Steps that were measured.
    pub steps: u64,
    /// Calls of those steps.
    pub calls: u64,
    /// From the begin of the first step to the end of the last.
    pub elapsed: Duration,
    /// CPU time of the client meanwhile.
    pub cpu_client: Duration,
    /// CPU time of the server meanwhile.
    pub cpu_server: Duration,
}

/// The result of a run, with the keys that all programs of `benches/peers` print.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// What was run, as its option is written.
    pub op: &'static str,
    /// Bytes of a tensor; the mean where sizes differ.
    pub size: u64,
    /// Tensors of a step.
    pub count: usize,
    /// Connections.
    pub conns: usize,
    /// Steps under way at once on each connection.
    pub depth: usize,
    /// Median time of a step, in microseconds.
    pub p50_us: f64,
    /// Of 100 steps one takes longer, in microseconds.
    pub p99_us: f64,
    /// Of 1000 steps one takes longer, in microseconds.
    pub p999_us: f64,
    /// Calls each second.
    pub req_per_s: f64,
    /// Decimal gigabytes of tensors each second, in both directions together.
    pub gb_per_s: f64,
    /// Steps each second.
    pub steps_per_s: f64,
    /// CPU time of the client, in seconds.
    pub cpu_s_client: f64,
    /// CPU time of the server, in seconds.
    pub cpu_s_server: f64,
    /// What carried the bytes.
    pub transport: String,
    /// What moved them.
    pub driver: String,
}

impl Measured {
    /// Notes a step.
    pub(super) fn record(&mut self, elapsed: Duration) {
        self.latency.saturating_record(nanoseconds(elapsed));
        self.steps += 1;
    }

    /// Counts a step that was to begin so long after the one before. Those that this one held up
    /// count as having waited.
    pub(super) fn record_paced(&mut self, elapsed: Duration, interval: Duration) {
        let elapsed_ns = nanoseconds(elapsed).min(LONGEST_NS);
        // The time is within the bounds.
        let _ = (self.latency).record_correct(elapsed_ns, nanoseconds(interval));
        self.steps += 1;
    }

    /// The time that this part of the steps does not exceed, in microseconds; 0 if there are none.
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        if self.latency.is_empty() {
            return 0.0;
        }
        self.latency.value_at_quantile(quantile) as f64 / 1e3
    }

    /// The figures of a run of `options`.
    pub fn report(&self, options: &RunOptions, transport: &str, driver: &str) -> Report {
        let seconds = self.elapsed.as_secs_f64().max(1e-9);
        let payload = &options.payload;
        let step_bytes = payload.total_bytes().saturating_mul(options.op.crossings());
        Report {
            op: options.op.name(),
            size: payload.total_bytes() / payload.count.max(1) as u64,
            count: payload.count,
            conns: options.connections,
            depth: options.depth,
            p50_us: round(self.quantile_us(0.5)),
            p99_us: round(self.quantile_us(0.99)),
            p999_us: round(self.quantile_us(0.999)),
            req_per_s: round(self.calls as f64 / seconds),
            gb_per_s: round(self.steps as f64 * step_bytes as f64 / 1e9 / seconds),
            steps_per_s: round(self.steps as f64 / seconds),
            cpu_s_client: round(self.cpu_client.as_secs_f64()),
            cpu_s_server: round(self.cpu_server.as_secs_f64()),
            transport: transport.to_owned(),
            driver: driver.to_owned(),
        }
    }
}

impl Default for Measured {
    fn default() -> Self {
        Self {
            latency: histogram(),
            steps: 0,
            calls: 0,
            elapsed: Duration::ZERO,
            cpu_client: Duration::ZERO,
            cpu_server: Duration::ZERO,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, value: String| writeln!(f, "{name:<22}{value}");
        row(
            "operation",
            format!(
                "{} of {} x {} bytes, {} connections x {}",
                self.op, self.count, self.size, self.conns, self.depth
            ),
        )?;
        row("link", format!("{} ({})", self.transport, self.driver))?;
        row(
            "time of a step",
            format!(
                "p50 {:.1} us   p99 {:.1} us   p99.9 {:.1} us",
                self.p50_us, self.p99_us, self.p999_us
            ),
        )?;
        row(
            "throughput",
            format!(
                "{:.0} calls/s   {:.1} steps/s   {:.3} GB/s",
                self.req_per_s, self.steps_per_s, self.gb_per_s
            ),
        )?;
        row(
            "CPU time",
            format!(
                "client {:.2} s   server {:.2} s",
                self.cpu_s_client, self.cpu_s_server
            ),
        )
    }
}

/// A histogram of nanoseconds with three significant digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("the bounds are allowed")
}

/// A small histogram of nanoseconds with one significant digit.
pub(super) fn coarse_histogram() -> Histogram<u32> {
    Histogram::new_with_bounds(1, LONGEST_NS, 1).expect("the bounds are allowed")
}

pub(super) fn nanoseconds(elapsed: Duration) -> u64 {
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}

/// Three decimals say more than a run knows.
fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Ten minutes; longer times count as this.
const LONGEST_NS: u64 = 600_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_has_exactly_the_documented_keys() {
        let report = Measured::default().report(&RunOptions::default(), "tcp", "epoll");
        let value = serde_json::to_value(&report).unwrap();
        let mut keys: Vec<&String> = value.as_object().unwrap().keys().collect();
        let mut documented = [
            "op",
            "size",
            "count",
            "conns",
            "depth",
            "p50_us",
            "p99_us",
            "p999_us",
            "req_per_s",
            "gb_per_s",
            "steps_per_s",
            "cpu_s_client",
            "cpu_s_server",
            "transport",
            "driver",
        ];
        keys.sort();
        documented.sort_unstable();
        assert_eq!(keys, documented);
    }

    #[test]
    fn rates_come_from_steps_calls_and_time() {
        let mut measured = Measured::default();
        for _ in 0..10 {
            measured.record(Duration::from_micros(50));
        }
        measured.calls = 40;
        measured.elapsed = Duration::from_millis(100);
        let mut options = RunOptions {
            op: super::super::Op::Ps,
            ..RunOptions::default()
        };
        options.payload.count = 4;
        options.payload.size_bytes = 1000;
        let report = measured.report(&options, "tcp", "io_uring");
        assert_eq!((report.steps_per_s, report.req_per_s), (100.0, 400.0));
        assert_eq!(report.gb_per_s, 0.001);
        assert!((49.9..50.1).contains(&report.p50_us), "{}", report.p50_us);
    }
}
