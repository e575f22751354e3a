//! How arrays crossed the border between Python and the engine, since the library was loaded.

use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// A way across the border.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// Sent from the memory of the array.
    Lent,
    /// Copied on its way in or out.
    Copied,
    /// Received in memory of the engine, which the array shows.
    Viewed,
    /// Received in the memory of an array that the caller gave.
    Landed,
}

struct Count {
    name: &'static str,
    bytes_name: &'static str,
    arrays: AtomicU64,
    bytes: AtomicU64,
}

impl Count {
    const fn new(name: &'static str, bytes_name: &'static str) -> Self {
        Self {
            name,
            bytes_name,
            arrays: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }
}

/// Counts an array of so many bytes.
pub(crate) fn count(way: Way, bytes: usize) {
    let count = &COUNTS[way as usize];
    count.arrays.fetch_add(1, Ordering::Relaxed);
    count.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// All counts by name.
#[pyfunction]
pub(crate) fn memory_counters(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let counts = PyDict::new(py);
    for count in &COUNTS {
        counts.set_item(count.name, count.arrays.load(Ordering::Relaxed))?;
        counts.set_item(count.bytes_name, count.bytes.load(Ordering::Relaxed))?;
    }
    Ok(counts)
}

/// In the order of [`Way`].
static COUNTS: [Count; 4] = [
    Count::new("lent", "lent_bytes"),
    Count::new("copied", "copied_bytes"),
    Count::new("viewed", "viewed_bytes"),
    Count::new("landed", "landed_bytes"),
];
