#![expect(unsafe_code, reason = "what C gives is pointers")]
//! What every exported function does with what C gives it.

use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};

use grpcxx_rpc::{Code, Status};

/// Runs the body of an exported function. A panic, which would be our own fault, becomes `fallback`.
pub(crate) fn guarded<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(fallback)
}

/// A failure that names the argument that is at fault.
pub(crate) fn invalid(fault: impl Into<String>) -> Status {
    Status::new(Code::InvalidArgument, fault.into())
}

/// The bytes of pointer and length; NULL without length is empty.
///
/// # Safety
/// `data` is NULL, or points to `size` bytes that stay unchanged for `'a`.
pub(crate) unsafe fn bytes<'a>(
    name: &str,
    data: *const u8,
    size: usize,
) -> Result<&'a [u8], Status> {
    if size == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return Err(invalid(format!("{name} is NULL, but has {size} bytes")));
    }
    if size > isize::MAX as usize {
        return Err(invalid(format!(
            "{name} has {size} bytes, more than memory can hold"
        )));
    }
    // SAFETY: stated by the caller, and not NULL and not too long.
    Ok(unsafe { std::slice::from_raw_parts(data, size) })
}

/// The text of pointer and length.
///
/// # Safety
/// As for [`bytes`].
pub(crate) unsafe fn text<'a>(
    name: &str,
    data: *const c_char,
    size: usize,
) -> Result<&'a str, Status> {
    // SAFETY: stated by the caller.
    let bytes = unsafe { bytes(name, data.cast(), size) }?;
    std::str::from_utf8(bytes).map_err(|error| {
        invalid(format!(
            "{name} is not UTF-8 at byte {}",
            error.valid_up_to()
        ))
    })
}

/// Writes to where C wants a result, if it wants one.
///
/// # Safety
/// `place` is NULL or may be written.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: stated by the caller.
        unsafe { place.write(value) };
    }
}
