//! The numbers of calls and services in Prometheus' text format.

use std::fmt::{self, Write};

use grpcxx_runtime::service::{Code, MethodReport};
use grpcxx_runtime::{CallLatency, CallSide, LATENCY_BOUNDS_SECONDS, Latency};

/// Adds what was counted of each method.
pub(super) fn write_methods(reports: &[MethodReport], text: &mut String) {
    if !reports.is_empty() {
        try_write(reports, text).expect("a string takes all texts");
    }
}

/// Adds how long calls and requests of star took, which `silent` shards have not told.
pub(super) fn write_calls(calls: &[CallLatency], silent: usize, text: &mut String) {
    try_write_calls(calls, silent, text).expect("a string takes all texts");
}

fn try_write_calls(calls: &[CallLatency], silent: usize, text: &mut String) -> fmt::Result {
    for (side, name, meaning) in [
        (
            CallSide::Client,
            "grpcxx_call_seconds",
            "Time of calls of this task, from the turn in which a shard took one to that of its end.",
        ),
        (
            CallSide::Server,
            "grpcxx_request_seconds",
            "Time of requests of peers, from the turn that read one to that of its answer.",
        ),
    ] {
        begin(text, name, "histogram", meaning)?;
        for call in calls.iter().filter(|call| call.side == side) {
            let CallLatency {
                shard,
                method,
                medium,
                latency,
                ..
            } = call;
            let labels = format!("method=\"{method}\",medium=\"{medium}\",shard=\"{shard}\"");
            histogram(text, name, &labels, latency)?;
        }
    }
    let name = "grpcxx_shards_silent";
    let meaning = "Shards that did not tell in time how long their calls and requests took.";
    begin(text, name, "gauge", meaning)?;
    writeln!(text, "{name} {silent}")
}

fn try_write(reports: &[MethodReport], text: &mut String) -> fmt::Result {
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

fn histogram(text: &mut String, name: &str, labels: &str, latency: &Latency) -> fmt::Result {
    for bound in LATENCY_BOUNDS_SECONDS {
        let count = latency.within(bound);
        writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}")?;
    }
    let count = latency.count();
    writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}")?;
    writeln!(text, "{name}_sum{{{labels}}} {}", latency.seconds())?;
    writeln!(text, "{name}_count{{{labels}}} {count}")
}

fn begin(text: &mut String, name: &str, kind: &str, meaning: &str) -> fmt::Result {
    writeln!(text, "# HELP {name} {meaning}")?;
    writeln!(text, "# TYPE {name} {kind}")
}

/// Service and method. Both are names of a .proto file, which nothing has to be escaped in.
fn labels(report: &MethodReport) -> String {
    let path = report.path.trim_start_matches('/');
    let (service, method) = path.split_once('/').unwrap_or((path, ""));
    format!("service=\"{service}\",method=\"{method}\"")
}
