//! Metrics of a program that embeds the engine: counted on each shard without a lock, and shown on
//! the task's metrics page beside those of the engine.

mod cells;
mod kinds;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use grpcxx_rpc::{Code, Status};

use self::cells::Cells;
pub use self::kinds::{Counter, Gauge, Histogram, HistogramReport};
use crate::sharded::Shards;

/// The metrics of one engine; cheap to clone.
///
/// Asking again for a metric of the same name and labels gives the same one.
///
/// ```
/// use grpcxx_runtime::Engine;
///
/// let engine = Engine::builder().shards(2).start()?;
/// let reads = engine.metrics().counter("kv_reads_total", "Keys that were read.", &[])?;
/// let sizes = engine.metrics().histogram(
///     "kv_value_bytes",
///     "Lengths of values that were written.",
///     &[("table", "users")],
///     &[64.0, 1024.0, 65536.0],
/// )?;
///
/// let on_shard = reads.clone();
/// engine.shards().invoke_on(1, move || on_shard.increment()).wait()?;
/// reads.add(2);
/// sizes.record(100.0);
/// assert_eq!(reads.value(), 3);
/// assert_eq!(sizes.report().counts, [0, 1, 0, 0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Metrics {
    shards: Shards,
    registered: Arc<Mutex<Vec<Registered>>>,
}

struct Registered {
    name: String,
    meaning: String,
    labels: Vec<(String, String)>,
    metric: Metric,
}

#[derive(Clone, Debug)]
enum Metric {
    Counter(Counter),
    Gauge(Gauge),
    Histogram(Histogram),
}

/// A metric as it stands.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MetricReport {
    /// Its name.
    pub name: String,
    /// What it means.
    pub meaning: String,
    /// What tells it from others of its name.
    pub labels: Vec<(String, String)>,
    /// What was counted.
    pub value: MetricValue,
}

/// What was counted, over all shards.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum MetricValue {
    /// Of a [`Counter`].
    Counter(u64),
    /// Of a [`Gauge`].
    Gauge(i64),
    /// Of a [`Histogram`].
    Histogram(HistogramReport),
}

impl Metrics {
    pub(crate) fn new(shards: Shards) -> Self {
        Self {
            shards,
            registered: Arc::default(),
        }
    }

    /// A number that only grows. Its name should end with `_total`.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if name or labels are none of Prometheus, begin with `grpcxx_`, or belong
    /// to a metric of another kind or meaning; `RESOURCE_EXHAUSTED` if there are 1,024 metrics.
    pub fn counter(
        &self,
        name: &str,
        meaning: &str,
        labels: &[(&str, &str)],
    ) -> Result<Counter, Status> {
        let make = || Metric::Counter(Counter::new(Cells::new(&self.shards, 1)));
        match self.register(name, meaning, labels, make)? {
            Metric::Counter(counter) => Ok(counter),
            other => Err(taken(name, other.kind())),
        }
    }

    /// A number that goes up and down.
    ///
    /// # Errors
    /// Those of [`Metrics::counter`].
    pub fn gauge(
        &self,
        name: &str,
        meaning: &str,
        labels: &[(&str, &str)],
    ) -> Result<Gauge, Status> {
        let make = || Metric::Gauge(Gauge::new(Cells::new(&self.shards, 1)));
        match self.register(name, meaning, labels, make)? {
            Metric::Gauge(gauge) => Ok(gauge),
            other => Err(taken(name, other.kind())),
        }
    }

    /// How often values are at most as large as each of `bounds`, which rise.
    ///
    /// # Errors
    /// Those of [`Metrics::counter`]; `INVALID_ARGUMENT` also if there is no bound, more than 64,
    /// or they do not rise.
    pub fn histogram(
        &self,
        name: &str,
        meaning: &str,
        labels: &[(&str, &str)],
        bounds: &[f64],
    ) -> Result<Histogram, Status> {
        let rises =
            bounds.is_sorted_by(|a, b| a < b) && bounds.iter().all(|bound| bound.is_finite());
        if bounds.is_empty() || bounds.len() > BOUNDS_MAX || !rises {
            let text = format!(
                "the bounds of {name:?} are {bounds:?}; allowed are 1 to {BOUNDS_MAX} that rise"
            );
            return Err(Status::new(Code::InvalidArgument, text));
        }
        let cells = || Cells::new(&self.shards, Histogram::numbers(bounds.len()));
        let make = || Metric::Histogram(Histogram::new(bounds, cells()));
        match self.register(name, meaning, labels, make)? {
            Metric::Histogram(histogram) if histogram.report().bounds == bounds => Ok(histogram),
            Metric::Histogram(_) => Err(taken(name, "histogram with other bounds")),
            other => Err(taken(name, other.kind())),
        }
    }

    /// All metrics as they stand, those of a name together.
    pub fn reports(&self) -> Vec<MetricReport> {
        let mut reports: Vec<_> = self.registered().iter().map(Registered::report).collect();
        reports.sort_by(|a, b| (&a.name, &a.labels).cmp(&(&b.name, &b.labels)));
        reports
    }

    fn register(
        &self,
        name: &str,
        meaning: &str,
        labels: &[(&str, &str)],
        make: impl FnOnce() -> Metric,
    ) -> Result<Metric, Status> {
        check_names(name, labels)?;
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut labels: Vec<_> = labels.iter().map(owned).collect();
        labels.sort_unstable();
        let mut registered = self.registered();
        let mut of_name = registered.iter().filter(|found| found.name == name);
        if let Some(found) = of_name.clone().find(|found| found.labels == labels) {
            return Ok(found.metric.clone());
        }
        let metric = make();
        if let Some(other) = of_name.find(|found| found.metric.kind() != metric.kind()) {
            return Err(taken(name, other.metric.kind()));
        }
        if registered.len() >= METRICS_MAX {
            let text = format!("there are {METRICS_MAX} metrics, as many as an engine has");
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        registered.push(Registered {
            name: name.to_owned(),
            meaning: meaning.to_owned(),
            labels,
            metric: metric.clone(),
        });
        Ok(metric)
    }

    fn registered(&self) -> MutexGuard<'_, Vec<Registered>> {
        self.registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registered {
    fn report(&self) -> MetricReport {
        MetricReport {
            name: self.name.clone(),
            meaning: self.meaning.clone(),
            labels: self.labels.clone(),
            value: match &self.metric {
                Metric::Counter(counter) => MetricValue::Counter(counter.value()),
                Metric::Gauge(gauge) => MetricValue::Gauge(gauge.value()),
                Metric::Histogram(histogram) => MetricValue::Histogram(histogram.report()),
            },
        }
    }
}

impl Metric {
    fn kind(&self) -> &'static str {
        match self {
            Self::Counter(_) => "counter",
            Self::Gauge(_) => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.reports()).finish()
    }
}

fn check_names(name: &str, labels: &[(&str, &str)]) -> Result<(), Status> {
    let invalid = |text: String| Err(Status::new(Code::InvalidArgument, text));
    if !is_name(name) || name.starts_with(OWN_PREFIX) {
        return invalid(format!(
            "{name:?} is no name of a metric; allowed are letters, digits and _, at most \
             {NAME_BYTES_MAX}, not beginning with a digit or {OWN_PREFIX}"
        ));
    }
    if labels.len() > LABELS_MAX {
        let found = labels.len();
        return invalid(format!(
            "{name} has {found} labels, allowed are {LABELS_MAX}"
        ));
    }
    for (at, (label, value)) in labels.iter().enumerate() {
        let is_twice = labels[..at].iter().any(|(other, _)| other == label);
        if !is_name(label) || label.starts_with("__") || *label == "le" || is_twice {
            return invalid(format!(
                "the label {label:?} of {name} is no name, reserved, or there twice; allowed are \
                 letters, digits and _"
            ));
        }
        if value.len() > VALUE_BYTES_MAX {
            let found = value.len();
            return invalid(format!(
                "the label {label} of {name} has {found} bytes, allowed are {VALUE_BYTES_MAX}"
            ));
        }
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    let is_letter = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'_';
    name.len() <= NAME_BYTES_MAX
        && name.as_bytes().first().is_some_and(is_letter)
        && name
            .bytes()
            .all(|byte| is_letter(&byte) || byte.is_ascii_digit())
}

fn taken(name: &str, kind: &str) -> Status {
    let text = format!("{name} is a {kind} already; give the other one another name");
    Status::new(Code::InvalidArgument, text)
}

/// Metrics of one engine, each set of labels counted.
const METRICS_MAX: usize = 1024;
/// Bounds of a histogram.
const BOUNDS_MAX: usize = 64;
/// Labels of a metric.
const LABELS_MAX: usize = 8;
/// Bytes of a name.
const NAME_BYTES_MAX: usize = 128;
/// Bytes of the value of a label.
const VALUE_BYTES_MAX: usize = 256;
/// What the engine's own metrics begin with.
const OWN_PREFIX: &str = "grpcxx_";
