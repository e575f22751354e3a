//! The numbers of services in Prometheus' text format.

use std::fmt::{self, Write};

use grpcxx_runtime::service::{Code, LATENCY_BOUNDS_SECONDS, MethodReport};

/// Adds what was counted of each method.
pub(super) fn write(reports: &[MethodReport], text: &mut String) {
    if !reports.is_empty() {
        try_write(reports, text).expect("a string takes all texts");
    }
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
        let labels = labels(report);
        for (bound, count) in LATENCY_BOUNDS_SECONDS.iter().zip(&report.within_bounds) {
            writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}")?;
        }
        writeln!(
            text,
            "{name}_bucket{{{labels},le=\"+Inf\"}} {}",
            report.ended
        )?;
        writeln!(text, "{name}_sum{{{labels}}} {}", report.seconds)?;
        writeln!(text, "{name}_count{{{labels}}} {}", report.ended)?;
    }
    Ok(())
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
