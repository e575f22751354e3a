//! Figures, medians, and a count of heap allocations.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Latencies in nanoseconds.
pub(crate) struct Histogram(hdrhistogram::Histogram<u64>);

impl Histogram {
    pub(crate) fn new() -> Self {
        Self(hdrhistogram::Histogram::new(3).expect("three digits are allowed"))
    }

    pub(crate) fn record(&mut self, elapsed: Duration) {
        self.0
            .saturating_record(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn p50_us(&self) -> f64 {
        self.0.value_at_quantile(0.5) as f64 / 1e3
    }

    pub(crate) fn p99_us(&self) -> f64 {
        self.0.value_at_quantile(0.99) as f64 / 1e3
    }
}

/// One line of the table.
pub(crate) struct Row {
    name: String,
    unit: &'static str,
    ours: f64,
    baseline: Option<(&'static str, f64, f64)>,
}

impl Row {
    /// Our figure beside a baseline; the ratio is the median of the rounds' ratios.
    pub(crate) fn ratio(
        name: &str,
        unit: &'static str,
        ours: Vec<f64>,
        baseline_name: &'static str,
        baseline: Vec<f64>,
    ) -> Self {
        let ratios = ours.iter().zip(&baseline).map(|(a, b)| a / b).collect();
        Self {
            name: name.to_owned(),
            unit,
            ours: median(ours),
            baseline: Some((baseline_name, median(baseline), median(ratios))),
        }
    }

    pub(crate) fn plain(name: &str, unit: &'static str, ours: Vec<f64>) -> Self {
        Self {
            name: name.to_owned(),
            unit,
            ours: median(ours),
            baseline: None,
        }
    }
}

pub(crate) fn print_table(rows: &[Row]) {
    for row in rows {
        let figure = format!("{:.2} {}", row.ours, row.unit);
        match row.baseline {
            Some((name, value, ratio)) => println!(
                "{:<44} {figure:>18}   {name} {value:.2} {}   ratio {ratio:.2}",
                row.name, row.unit
            ),
            None => println!("{:<44} {figure:>18}", row.name),
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Pins the calling thread to the CPU with this index among those allowed.
pub(crate) fn pin(index: usize) {
    if let Some(cpus) = core_affinity::get_core_ids()
        && let Some(cpu) = cpus.get(index)
    {
        core_affinity::set_for_current(*cpu);
    }
}

/// The system's allocator, with a count of allocations.
pub(crate) struct CountingAllocator;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// Heap allocations of the whole process so far.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

// SAFETY: every request goes unchanged to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::realloc`.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}
