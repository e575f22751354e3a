#![expect(unsafe_code, reason = "exported functions over pointers")]
//! What a program in C adds to the metrics page of its engine.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use grpcxx_runtime::exposition::{
    AwaitedTensor, MetricKind, MetricsText, MoreAwaited, MoreMetrics,
};

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

type AwaitedFn =
    unsafe extern "C" fn(*mut c_void, *const c_char, usize, i64, *const c_char, usize, u64);
type AwaitingFn = extern "C" fn(*mut c_void, AwaitedFn, *mut c_void);

/// A function of C that tells which tensors it waits for.
struct CAwaiting {
    tell: AwaitingFn,
    user: Owned,
}

/// Adds one tensor to the page.
///
/// # Safety
/// `into` is what [`CAwaiting::add_to`] gave to C, and the texts are as long as it says.
unsafe extern "C" fn add_awaited(
    into: *mut c_void,
    peer: *const c_char,
    peer_size: usize,
    step_id: i64,
    key: *const c_char,
    key_size: usize,
    age_ms: u64,
) {
    guarded((), || {
        if into.is_null() {
            return;
        }
        // SAFETY: stated by the caller.
        let (tensors, peer, key) = unsafe {
            let tensors = &mut *into.cast::<Vec<AwaitedTensor>>();
            (tensors, lossy(peer, peer_size), lossy(key, key_size))
        };
        tensors.push(AwaitedTensor {
            peer,
            step_id,
            key,
            age: Duration::from_millis(age_ms),
        });
    });
}

/// # Safety
/// NULL, or as long as it says.
unsafe fn lossy(text: *const c_char, size: usize) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: stated by the caller.
    let bytes = unsafe { slice::from_raw_parts(text.cast::<u8>(), size) };
    String::from_utf8_lossy(bytes).into_owned()
}

impl CAwaiting {
    fn add_to(&self, tensors: &mut Vec<AwaitedTensor>) {
        let into = ptr::from_mut(tensors).cast();
        (self.tell)(self.user.pointer(), add_awaited, into);
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_options_set_awaiting(
    options: *mut COptions,
    awaiting: Option<AwaitingFn>,
    user: *mut c_void,
    free_user: Option<extern "C" fn(*mut c_void)>,
) -> *mut CStatus {
    // SAFETY: the header says what each pointer is.
    unsafe {
        change(options, |options| {
            options.set_awaited(awaiting.map(|tell| -> MoreAwaited {
                let user = Owned::new(user, free_user);
                let awaiting = CAwaiting { tell, user };
                Arc::new(move |tensors| awaiting.add_to(tensors))
            }));
            Ok(())
        })
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
