//! What a program counts with.

use std::fmt;
use std::sync::Arc;

use super::cells::Cells;

/// A number that only grows. Cheap to clone, and usable from any thread.
#[derive(Clone)]
pub struct Counter {
    cells: Arc<Cells>,
}

/// A number that goes up and down. Each shard has one of its own, and their sum is the metric.
/// Cheap to clone, and usable from any thread.
#[derive(Clone)]
pub struct Gauge {
    cells: Arc<Cells>,
}

/// How often values were at most so large. Cheap to clone, and usable from any thread.
#[derive(Clone)]
pub struct Histogram {
    inner: Arc<HistogramInner>,
}

struct HistogramInner {
    bounds: Box<[f64]>,
    /// The count of each class, the one beyond all bounds, and the bits of the sum.
    cells: Cells,
}

/// What a histogram has counted.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct HistogramReport {
    /// Upper bounds of the classes, each included.
    pub bounds: Vec<f64>,
    /// Values of each class; the last is that of values beyond all bounds.
    pub counts: Vec<u64>,
    /// All values together.
    pub sum: f64,
}

impl Counter {
    pub(super) fn new(cells: Cells) -> Self {
        let cells = Arc::new(cells);
        Self { cells }
    }

    /// Counts so many more.
    #[inline]
    pub fn add(&self, count: u64) {
        self.cells.update(0, |total| total.wrapping_add(count));
    }

    /// Counts one more.
    #[inline]
    pub fn increment(&self) {
        self.add(1);
    }

    /// The sum over all shards.
    pub fn value(&self) -> u64 {
        self.cells.read(0).fold(0, u64::wrapping_add)
    }
}

impl Gauge {
    pub(super) fn new(cells: Cells) -> Self {
        let cells = Arc::new(cells);
        Self { cells }
    }

    /// Sets what this shard contributes; all threads that are no shards contribute one number.
    #[inline]
    pub fn set(&self, value: i64) {
        self.cells.update(0, |_| value as u64);
    }

    /// Changes what this shard contributes.
    #[inline]
    pub fn add(&self, change: i64) {
        let change = change as u64;
        self.cells.update(0, |value| value.wrapping_add(change));
    }

    /// The sum over all shards.
    pub fn value(&self) -> i64 {
        self.cells.read(0).fold(0, u64::wrapping_add) as i64
    }
}

impl Histogram {
    /// The numbers that a histogram with so many bounds needs.
    pub(super) const fn numbers(bounds: usize) -> usize {
        bounds + 2
    }

    pub(super) fn new(bounds: &[f64], cells: Cells) -> Self {
        let inner = HistogramInner {
            bounds: bounds.into(),
            cells,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Notes a value. One that is no number is dropped.
    #[inline]
    pub fn record(&self, value: f64) {
        if value.is_nan() {
            return;
        }
        let HistogramInner { bounds, cells } = &*self.inner;
        let class = bounds.partition_point(|bound| *bound < value);
        cells.update(class, |count| count.wrapping_add(1));
        let add = |sum| (f64::from_bits(sum) + value).to_bits();
        cells.update(bounds.len() + 1, add);
    }

    /// The sum over all shards.
    pub fn report(&self) -> HistogramReport {
        let HistogramInner { bounds, cells } = &*self.inner;
        let total = |class| cells.read(class).fold(0, u64::wrapping_add);
        HistogramReport {
            bounds: bounds.to_vec(),
            counts: (0..=bounds.len()).map(total).collect(),
            sum: cells.read(bounds.len() + 1).map(f64::from_bits).sum(),
        }
    }
}

impl HistogramReport {
    /// How many values there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Counter").field(&self.value()).finish()
    }
}

impl fmt::Debug for Gauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gauge").field(&self.value()).finish()
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Histogram").field(&self.report()).finish()
    }
}
