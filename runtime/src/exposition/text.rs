//! The numbers of an engine in Prometheus' text format.

use std::fmt::{self, Write};

use super::{calls, program, shards};
use crate::cpu_time;
use crate::inspection::ShardInspection;
use crate::latency::{LATENCY_BOUNDS_SECONDS, Latency, ShardCalls};
use crate::metrics::MetricReport;
use crate::service::{Code, MethodReport};

/// Numbers in Prometheus' text format.
#[derive(Clone, Debug, Default)]
pub struct MetricsText(String);

/// How a number goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows; its name gets `_total` at its end.
    Counter,
    /// It is what it is now.
    Gauge,
}

impl MetricsText {
    /// Adds a number as `grpcxx_NAME`. What no name may have becomes `_`, and line breaks of the
    /// meaning become spaces.
    pub fn add(&mut self, name: &str, kind: MetricKind, meaning: &str, value: u64) {
        let (kind, end) = match kind {
            MetricKind::Counter => ("counter", "_total"),
            MetricKind::Gauge => ("gauge", ""),
        };
        let allowed = |sign: char| {
            if sign.is_ascii_alphanumeric() {
                sign
            } else {
                '_'
            }
        };
        let name: String = name.chars().map(allowed).collect();
        let name = format!("grpcxx_{name}{end}");
        let meaning = meaning.trim().replace(['\n', '\r', '\\'], " ");
        let text = &mut self.0;
        begin(text, &name, kind, &meaning)
            .and_then(|()| writeln!(text, "{name} {value}"))
            .expect(TAKES_ALL);
    }

    /// Adds what was counted of each method of a service.
    pub fn add_methods(&mut self, reports: &[MethodReport]) {
        if !reports.is_empty() {
            write_methods(reports, &mut self.0).expect(TAKES_ALL);
        }
    }

    /// Adds what shards have counted of calls, requests and links, which `silent` shards have not
    /// told.
    pub(super) fn add_calls(&mut self, told: &[ShardCalls], silent: usize) {
        calls::write(told, silent, &mut self.0).expect(TAKES_ALL);
    }

    /// Adds what shards do now, and the CPU time of each.
    pub(super) fn add_shards(&mut self, shards: &[ShardInspection]) {
        shards::write(shards, &cpu_time::of_shards(), &mut self.0).expect(TAKES_ALL);
    }

    /// Adds what the program counts. Reports of one name follow each other.
    pub(super) fn add_program(&mut self, reports: &[MetricReport]) {
        program::write(reports, &mut self.0).expect(TAKES_ALL);
    }

    /// The text.
    pub fn into_string(self) -> String {
        self.0
    }
}

fn write_methods(reports: &[MethodReport], text: &mut String) -> fmt::Result {
    let name = "grpcxx_service_calls_total";
    begin(
        text,
        name,
        "counter",
        "Calls of methods that have ended, by status code.",
    )?;
    for report in reports {
        let labels = labels(report);
        for (code, count) in &report.calls {
            let code = code.map_or("OK", Code::name);
            writeln!(text, "{name}{{{labels},code=\"{code}\"}} {count}")?;
        }
    }
    let name = "grpcxx_service_calls_in_flight";
    begin(text, name, "gauge", "Calls of methods that have not ended.")?;
    for report in reports {
        writeln!(text, "{name}{{{}}} {}", labels(report), report.in_flight)?;
    }
    let name = "grpcxx_service_request_bytes_total";
    begin(
        text,
        name,
        "counter",
        "Bytes of the messages that methods were called with.",
    )?;
    for report in reports {
        writeln!(
            text,
            "{name}{{{}}} {}",
            labels(report),
            report.request_bytes
        )?;
    }
    let name = "grpcxx_service_answer_bytes_total";
    begin(
        text,
        name,
        "counter",
        "Bytes of the messages that methods answered with.",
    )?;
    for report in reports {
        writeln!(text, "{name}{{{}}} {}", labels(report), report.answer_bytes)?;
    }
    let name = "grpcxx_service_call_seconds";
    begin(
        text,
        name,
        "histogram",
        "Time from the arrival of a request to its answer.",
    )?;
    for report in reports {
        histogram(text, name, &labels(report), &report.latency)?;
    }
    Ok(())
}

/// Adds the lines of one histogram.
pub(super) fn histogram(
    text: &mut String,
    name: &str,
    labels: &str,
    latency: &Latency,
) -> fmt::Result {
    for bound in LATENCY_BOUNDS_SECONDS {
        let count = latency.within(bound);
        writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}")?;
    }
    let count = latency.count();
    writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}")?;
    writeln!(text, "{name}_sum{{{labels}}} {}", latency.seconds())?;
    writeln!(text, "{name}_count{{{labels}}} {count}")
}

/// Adds a metric of one number.
pub(super) fn write_number(name: &str, kind: &str, meaning: &str, value: u64, text: &mut String) {
    let written = begin(text, name, kind, meaning).and_then(|()| writeln!(text, "{name} {value}"));
    written.expect("a string takes all texts");
}

/// Adds the lines that come before the numbers of a metric.
pub(super) fn begin(text: &mut String, name: &str, kind: &str, meaning: &str) -> fmt::Result {
    writeln!(text, "# HELP {name} {meaning}")?;
    writeln!(text, "# TYPE {name} {kind}")
}

/// Service and method. Both are names of a .proto file, which nothing has to be escaped in.
fn labels(report: &MethodReport) -> String {
    let path = report.path.trim_start_matches('/');
    let (service, method) = path.split_once('/').unwrap_or((path, ""));
    format!("service=\"{service}\",method=\"{method}\"")
}

const TAKES_ALL: &str = "a string takes all texts";

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_name_or_a_meaning_breaks_no_line() {
        let mut text = MetricsText::default();
        text.add("a b\nc", MetricKind::Counter, " one\ntwo ", 3);
        text.add("d", MetricKind::Gauge, "D.", 4);
        let expected = "# HELP grpcxx_a_b_c_total one two\n# TYPE grpcxx_a_b_c_total counter\n\
            grpcxx_a_b_c_total 3\n# HELP grpcxx_d D.\n# TYPE grpcxx_d gauge\ngrpcxx_d 4\n";
        assert_eq!(text.into_string(), expected);
    }
}
