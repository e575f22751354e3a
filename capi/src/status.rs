#![expect(unsafe_code, reason = "exported functions over pointers")]
//! `grpcxx_status`.

use std::ffi::{CStr, CString, c_char};
use std::ptr;

use grpcxx_rpc::{Code, Reason, Status};

use crate::boundary::{guarded, put, text};

/// A failure as C holds it.
pub(crate) struct CStatus {
    code: i32,
    reason: Reason,
    message: CString,
}

impl CStatus {
    pub(crate) fn new(status: &Status) -> Self {
        Self {
            code: status.code as i32,
            reason: status.reason,
            message: c_string(&status.message),
        }
    }

    /// What C gets of an outcome: NULL or a status that it owns.
    pub(crate) fn of(outcome: Result<(), Status>) -> *mut Self {
        match outcome {
            Ok(()) => ptr::null_mut(),
            Err(status) => Box::into_raw(Box::new(Self::new(&status))),
        }
    }

    /// What a callback of C has returned: NULL, or a status that is the engine's.
    ///
    /// # Safety
    /// `status` is NULL or was made by [`CStatus::of`], and nobody else owns it.
    pub(crate) unsafe fn outcome(status: *mut Self) -> Result<(), Status> {
        if status.is_null() {
            return Ok(());
        }
        // SAFETY: stated by the caller.
        Err(unsafe { Box::from_raw(status) }.to_status())
    }

    pub(crate) fn to_status(&self) -> Status {
        let code = Code::from_number(self.code).unwrap_or(Code::Unknown);
        Status::new(code, self.message.to_string_lossy().into_owned()).because(self.reason)
    }
}

/// The body of an exported function that can fail.
pub(crate) fn reporting(body: impl FnOnce() -> Result<(), Status>) -> *mut CStatus {
    CStatus::of(guarded(
        Err(Status::new(
            Code::Internal,
            "the engine's own code panicked; please report this",
        )),
        body,
    ))
}

/// A text with a final NUL; inner ones, which C could not see beyond, are replaced.
pub(crate) fn c_string(text: &str) -> CString {
    CString::new(text)
        .or_else(|_| CString::new(text.replace('\0', "\u{fffd}")))
        .unwrap_or_default()
}

/// The failure that C names with a code and a text.
///
/// # Safety
/// `message` is NULL or points to `size` bytes.
pub(crate) unsafe fn status_of(code: i32, message: *const c_char, size: usize) -> Status {
    let code = Code::from_number(code).unwrap_or(Code::Unknown);
    // SAFETY: stated by the caller.
    match unsafe { text("message", message, size) } {
        Ok(message) => Status::new(code, message.to_owned()),
        Err(fault) => Status::new(code, fault.message),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_status_new(
    code: i32,
    message: *const c_char,
    message_size: usize,
) -> *mut CStatus {
    guarded(ptr::null_mut(), || {
        // SAFETY: stated in the header.
        CStatus::of(Err(unsafe { status_of(code, message, message_size) }))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_status_free(status: *mut CStatus) {
    if !status.is_null() {
        // SAFETY: it was made by `CStatus::of`, and the caller owns it.
        guarded((), || drop(unsafe { Box::from_raw(status) }));
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_status_code(status: *const CStatus) -> i32 {
    // SAFETY: NULL or a status that lives.
    unsafe { status.as_ref() }.map_or(0, |status| status.code)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_status_message(
    status: *const CStatus,
    message_size: *mut usize,
) -> *const c_char {
    // SAFETY: NULL or a status that lives.
    let message = unsafe { status.as_ref() }.map_or(c"", |status| &status.message);
    // SAFETY: NULL or writable.
    unsafe { put(message_size, message.count_bytes()) };
    message.as_ptr()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_status_reason(status: *const CStatus) -> i32 {
    // SAFETY: NULL or a status that lives.
    unsafe { status.as_ref() }.map_or(0, |status| status.reason as i32)
}

/// The name of a code.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn grpcxx_code_name(code: i32) -> *const c_char {
    name_of(code).as_ptr()
}

fn name_of(code: i32) -> &'static CStr {
    match code {
        0 => c"OK",
        1 => c"CANCELLED",
        3 => c"INVALID_ARGUMENT",
        4 => c"DEADLINE_EXCEEDED",
        5 => c"NOT_FOUND",
        6 => c"ALREADY_EXISTS",
        7 => c"PERMISSION_DENIED",
        8 => c"RESOURCE_EXHAUSTED",
        9 => c"FAILED_PRECONDITION",
        10 => c"ABORTED",
        11 => c"OUT_OF_RANGE",
        12 => c"UNIMPLEMENTED",
        13 => c"INTERNAL",
        14 => c"UNAVAILABLE",
        15 => c"DATA_LOSS",
        16 => c"UNAUTHENTICATED",
        _ => c"UNKNOWN",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_codes() {
        for code in Code::ALL {
            assert_eq!(name_of(*code as i32).to_str(), Ok(code.name()));
        }
    }

    #[test]
    fn a_reason_survives_the_way_to_c_and_back() {
        for &reason in Reason::ALL {
            let status = Status::new(Code::Unavailable, "gone").because(reason);
            let in_c = CStatus::new(&status);
            // SAFETY: the status lives.
            let number = unsafe { grpcxx_status_reason(&raw const in_c) };
            assert_eq!(number, reason as i32);
            assert_eq!(in_c.to_status(), status);
        }
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { grpcxx_status_reason(ptr::null()) }, 0);
    }

    #[test]
    fn texts_with_nul_keep_their_rest() {
        assert_eq!(c_string("a\0b").to_bytes(), "a\u{fffd}b".as_bytes());
    }
}
