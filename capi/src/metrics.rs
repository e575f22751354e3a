#![expect(unsafe_code, reason = "exported functions over pointers")]
//! Numbers of a program in C on the metrics page of its engine.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::Arc;

use grpcxx_runtime::exposition::{MetricKind, MetricsText, MoreMetrics};

use crate::boundary::{Owned, guarded};
use crate::engine::CEngine;
use crate::options::{COptions, change};
use crate::status::CStatus;

type MetricFn = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char, bool, u64);
type MetricsFn = extern "C" fn(*mut c_void, MetricFn, *mut c_void);

/// A function of C that tells numbers.
struct CMetrics {
    tell: MetricsFn,
    user: Owned,
}

/// Adds one number to the page.
///
/// # Safety
/// `into` is what [`CMetrics::add_to`] gave to C, and the texts are NULL or end with NUL.
unsafe extern "C" fn add(
    into: *mut c_void,
    name: *const c_char,
    meaning: *const c_char,
    is_gauge: bool,
    value: u64,
) {
    guarded((), || {
        if into.is_null() || name.is_null() || meaning.is_null() {
            return;
        }
        // SAFETY: stated by the caller.
        let (text, name, meaning) = unsafe {
            let text = &mut *into.cast::<MetricsText>();
            (text, CStr::from_ptr(name), CStr::from_ptr(meaning))
        };
        let kind = if is_gauge {
            MetricKind::Gauge
        } else {
            MetricKind::Counter
        };
        text.add(
            &name.to_string_lossy(),
            kind,
            &meaning.to_string_lossy(),
            value,
        );
    });
}

impl CMetrics {
    fn add_to(&self, text: &mut MetricsText) {
        let into = ptr::from_mut(text).cast();
        (self.tell)(self.user.pointer(), add, into);
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_options_set_metrics(
    options: *mut COptions,
    metrics: Option<MetricsFn>,
    user: *mut c_void,
    free_user: Option<extern "C" fn(*mut c_void)>,
) -> *mut CStatus {
    // SAFETY: the header says what each pointer is.
    unsafe {
        change(options, |options| {
            options.set_metrics(metrics.map(|tell| -> MoreMetrics {
                let user = Owned::new(user, free_user);
                let metrics = CMetrics { tell, user };
                Arc::new(move |text| metrics.add_to(text))
            }));
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_engine_metrics_address(
    engine: *const CEngine,
) -> *const c_char {
    // SAFETY: NULL or alive.
    unsafe { engine.as_ref() }
        .and_then(CEngine::metrics_address)
        .map_or(ptr::null(), CStr::as_ptr)
}
