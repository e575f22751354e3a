#![expect(unsafe_code, reason = "handles go to C and come back")]
//! The function of C that sees each request first.

use std::ffi::c_void;
use std::sync::Arc;

use grpcxx_rpc::Request;
use grpcxx_runtime::{Later, Served, Service};

use crate::boundary::Owned;
use crate::notices::calling_back;
use crate::request::CRequest;
use crate::responder::{CResponder, Verdict};

pub(crate) type ServiceFn = extern "C" fn(*mut c_void, *const CRequest, *const CResponder) -> i32;

/// A service in C.
pub(crate) struct CService {
    service: ServiceFn,
    user: Owned,
}

impl CService {
    pub(crate) fn new(service: ServiceFn, user: Owned) -> Self {
        Self { service, user }
    }
}

impl Service for CService {
    fn serve(&self, request: Request, later: Later<'_>) -> Served {
        let request = Arc::new(CRequest::new(request));
        let held = CResponder::new(Arc::clone(&request));
        let (responder, promise) = later.watched(held.clone());
        held.arm(responder);
        let handle = Arc::into_raw(Arc::clone(&held));
        let taken =
            calling_back(|| (self.service)(self.user.pointer(), Arc::as_ptr(&request), handle))
                == TAKEN;
        match held.settle(taken) {
            Verdict::Answered(responder, result) => promise.keep(responder, result),
            Verdict::Later => Served::Later(promise),
            Verdict::Declined => {
                // SAFETY: the service declined, so its ownership of the responder is ours again.
                drop(unsafe { Arc::from_raw(handle) });
                drop((held, promise));
                Served::Declined(CRequest::into_inner(request))
            }
        }
    }
}

/// `GRPCXX_TAKEN`.
const TAKEN: i32 = 1;
