#![expect(unsafe_code, reason = "exported functions over pointers")]
//! `grpcxx_request`.

use std::ffi::{c_char, c_void};
use std::ptr;
use std::slice;
use std::sync::Arc;

use grpcxx_rpc::{GraphCall, Request, Text};

use crate::boundary::{put, release, retain};
use crate::tensor::CTensor;

/// A request as C holds it.
pub(crate) struct CRequest {
    request: Request,
    feeds: Vec<Arc<CTensor>>,
}

impl CRequest {
    pub(crate) fn new(request: Request) -> Self {
        let feeds = match &request {
            Request::StarRunGraph(call) => call
                .feeds
                .iter()
                .map(|(_, tensor)| Arc::new(CTensor::new(tensor.clone())))
                .collect(),
            _ => Vec::new(),
        };
        Self { request, feeds }
    }

    /// The request itself, copied only if C has kept it.
    pub(crate) fn into_inner(this: Arc<Self>) -> Request {
        Arc::try_unwrap(this).map_or_else(|kept| kept.request.clone(), |own| own.request)
    }

    pub(crate) fn request(&self) -> &Request {
        &self.request
    }

    fn keys(&self) -> &[Text] {
        match &self.request {
            Request::RecvTensor { key, .. } => slice::from_ref(key),
            Request::FuseRecvTensor { keys, .. } => keys,
            _ => &[],
        }
    }

    fn graph_call(&self) -> Option<&GraphCall> {
        match &self.request {
            Request::StarRunGraph(call) => Some(call),
            _ => None,
        }
    }
}

/// Gives C a text.
///
/// # Safety
/// `size` is NULL or writable.
unsafe fn show(text: Option<&Text>, size: *mut usize) -> *const c_char {
    // SAFETY: stated by the caller.
    unsafe { put(size, text.map_or(0, |text| text.as_buffer().len())) };
    text.map_or(ptr::null(), |text| text.as_buffer().as_ptr().cast())
}

/// # Safety
/// `request` is NULL or alive.
unsafe fn graph_call<'a>(request: *const CRequest) -> Option<&'a GraphCall> {
    // SAFETY: stated by the caller.
    unsafe { request.as_ref() }.and_then(CRequest::graph_call)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_request_retain(request: *const CRequest) -> *const CRequest {
    // SAFETY: NULL or alive.
    unsafe { retain(request) };
    request
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_request_release(request: *const CRequest) {
    // SAFETY: NULL or an ownership of the caller.
    unsafe { release(request) };
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_request_method(request: *const CRequest) -> i32 {
    // SAFETY: NULL or alive.
    unsafe { request.as_ref() }.map_or(-1, |request| request.request.method_number())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_request_step_id(request: *const CRequest) -> i64 {
    // SAFETY: NULL or alive.
    unsafe { request.as_ref() }.map_or(0, |request| match &request.request {
        Request::RecvTensor { step_id, .. } | Request::FuseRecvTensor { step_id, .. } => *step_id,
        Request::StarRunGraph(call) => call.step_id as i64,
        Request::Message { .. } | Request::Unary(_) | Request::Stream(_) => 0,
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_request_num_keys(request: *const CRequest) -> usize {
    // SAFETY: NULL or alive.
    unsafe { request.as_ref() }.map_or(0, |request| request.keys().len())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_request_key(
    request: *const CRequest,
    index: usize,
    size: *mut usize,
) -> *const c_char {
    // SAFETY: the header says what each pointer is.
    unsafe {
        let key = request
            .as_ref()
            .and_then(|request| request.keys().get(index));
        show(key, size)
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_request_message(
    request: *const CRequest,
    size: *mut usize,
) -> *const c_void {
    // SAFETY: NULL or alive.
    let body = match unsafe { request.as_ref() }.map(CRequest::request) {
        Some(Request::Message { body, .. }) => Some(body),
        _ => None,
    };
    // SAFETY: NULL or writable.
    unsafe { put(size, body.map_or(0, |body| body.len())) };
    body.map_or(ptr::null(), |body| body.as_ptr().cast())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_request_handle(
    request: *const CRequest,
    size: *mut usize,
) -> *const c_char {
    // SAFETY: the header says what each pointer is.
    unsafe { show(graph_call(request).map(|call| &call.graph_handle), size) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_request_num_feeds(request: *const CRequest) -> usize {
    // SAFETY: NULL or alive.
    unsafe { graph_call(request) }.map_or(0, |call| call.feeds.len())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_request_feed_name(
    request: *const CRequest,
    index: usize,
    size: *mut usize,
) -> *const c_char {
    // SAFETY: the header says what each pointer is.
    unsafe {
        let feed = graph_call(request).and_then(|call| call.feeds.get(index));
        show(feed.map(|(name, _)| name), size)
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_request_feed(
    request: *const CRequest,
    index: usize,
) -> *const CTensor {
    // SAFETY: NULL or alive.
    unsafe { request.as_ref() }
        .and_then(|request| request.feeds.get(index))
        .map_or(ptr::null(), Arc::as_ptr)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_request_num_fetches(request: *const CRequest) -> usize {
    // SAFETY: NULL or alive.
    unsafe { graph_call(request) }.map_or(0, |call| call.fetches.len())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_request_fetch_name(
    request: *const CRequest,
    index: usize,
    size: *mut usize,
) -> *const c_char {
    // SAFETY: the header says what each pointer is.
    unsafe {
        show(
            graph_call(request).and_then(|call| call.fetches.get(index)),
            size,
        )
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_request_ps_graph_count(request: *const CRequest) -> i32 {
    // SAFETY: NULL or alive.
    unsafe { graph_call(request) }.map_or(0, |call| call.ps_graph_count)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_request_should_trace(request: *const CRequest) -> bool {
    // SAFETY: NULL or alive.
    unsafe { graph_call(request) }.is_some_and(|call| call.should_trace)
}
