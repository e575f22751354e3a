//! The metrics of the program itself, in Prometheus' text format.

use std::fmt::{self, Write};

use crate::metrics::{HistogramReport, MetricReport, MetricValue};

/// Adds what the program has counted. Reports of one name follow each other.
pub(super) fn write(reports: &[MetricReport], text: &mut String) -> fmt::Result {
    for family in reports.chunk_by(|a, b| a.name == b.name) {
        let MetricReport {
            name,
            meaning,
            value,
            ..
        } = &family[0];
        let kind = match value {
            MetricValue::Counter(_) => "counter",
            MetricValue::Gauge(_) => "gauge",
            MetricValue::Histogram(_) => "histogram",
        };
        let meaning = meaning.replace('\\', r"\\").replace('\n', r"\n");
        writeln!(text, "# HELP {name} {meaning}\n# TYPE {name} {kind}")?;
        for report in family {
            match &report.value {
                MetricValue::Counter(value) => {
                    writeln!(text, "{name}{} {value}", labels(report, None))?;
                }
                MetricValue::Gauge(value) => {
                    writeln!(text, "{name}{} {value}", labels(report, None))?;
                }
                MetricValue::Histogram(values) => histogram(report, values, text)?,
            }
        }
    }
    Ok(())
}

fn histogram(report: &MetricReport, values: &HistogramReport, text: &mut String) -> fmt::Result {
    let name = &report.name;
    let mut count = 0;
    let bounds = values.bounds.iter().map(f64::to_string);
    for (bound, class) in bounds.chain(["+Inf".to_owned()]).zip(&values.counts) {
        count += class;
        writeln!(
            text,
            "{name}_bucket{} {count}",
            labels(report, Some(&bound))
        )?;
    }
    let labels = labels(report, None);
    writeln!(text, "{name}_sum{labels} {}", values.sum)?;
    writeln!(text, "{name}_count{labels} {count}")
}

/// The labels of a report, and the bound of a class of its histogram.
fn labels(report: &MetricReport, bound: Option<&str>) -> String {
    let mut labels: Vec<String> = report
        .labels
        .iter()
        .map(|(name, value)| {
            let value = value.replace('\\', r"\\").replace('"', "\\\"");
            format!("{name}=\"{}\"", value.replace('\n', r"\n"))
        })
        .collect();
    labels.extend(bound.map(|bound| format!("le=\"{bound}\"")));
    match labels.is_empty() {
        true => String::new(),
        false => format!("{{{}}}", labels.join(",")),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::Engine;

    use super::*;

    #[test]
    fn families_have_help_type_and_all_their_series() {
        let engine = Engine::builder().start().unwrap();
        let metrics = engine.metrics();
        for op in ["put", "get\"\\\n"] {
            let counter = metrics.counter("kv_ops_total", "Ops.\nAll.", &[("op", op)]);
            counter.unwrap().add(3);
        }
        metrics.gauge("kv_keys", "Keys.", &[]).unwrap().set(-2);
        let sizes = metrics.histogram("kv_bytes", "Bytes.", &[("t", "a")], &[0.5, 8.0]);
        let sizes = sizes.unwrap();
        for bytes in [0.25, 4.0, 9.0] {
            sizes.record(bytes);
        }
        let mut text = String::new();
        write(&metrics.reports(), &mut text).unwrap();
        assert_eq!(
            text,
            r##"# HELP kv_bytes Bytes.
# TYPE kv_bytes histogram
kv_bytes_bucket{t="a",le="0.5"} 1
kv_bytes_bucket{t="a",le="8"} 2
kv_bytes_bucket{t="a",le="+Inf"} 3
kv_bytes_sum{t="a"} 13.25
kv_bytes_count{t="a"} 3
# HELP kv_keys Keys.
# TYPE kv_keys gauge
kv_keys -2
# HELP kv_ops_total Ops.\nAll.
# TYPE kv_ops_total counter
kv_ops_total{op="get\"\\\n"} 3
kv_ops_total{op="put"} 3
"##
        );
    }
}
