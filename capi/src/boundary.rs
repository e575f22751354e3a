#![expect(unsafe_code, reason = "what C gives is pointers")]
//! What every exported function does with what C gives it.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use std::sync::Arc;

use grpcxx_rpc::{Code, Status, Text};

use crate::notices::calling_back;

/// Runs the body of an exported function. A panic, which would be our own fault, becomes
/// `fallback`. The thread cannot be cancelled meanwhile.
pub(crate) fn guarded<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    uncancelled(|| catch_unwind(AssertUnwindSafe(body)).unwrap_or(fallback))
}

/// Runs code in which `pthread_cancel` does not end the thread: it would leave the locks behind
/// that it holds, such as that of a shard which it turns. It ends the thread behind that.
pub(crate) fn uncancelled<T>(body: impl FnOnce() -> T) -> T {
    let _until_then = Uncancelled::begin();
    body()
}

/// Whether the thread could be cancelled before, as the C library says it.
struct Uncancelled(c_int);

impl Uncancelled {
    fn begin() -> Self {
        let mut before = 0;
        // SAFETY: the place is writable.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Self(before)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        let mut disabled = 0;
        // SAFETY: the place is writable.
        unsafe { pthread_setcancelstate(self.0, &raw mut disabled) };
    }
}

unsafe extern "C" {
    /// Of the C library, as `pthread.h` has it.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// With glibc and musl alike.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

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

/// What C gives along with a function for that function alone.
#[derive(Clone, Copy)]
pub(crate) struct Context(pub(crate) *mut c_void);

// SAFETY: the engine never looks behind the pointer; the header says on which threads it is given
// back to C.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// A value of C that goes with a function which lets go of it.
pub(crate) struct Owned {
    context: Context,
    free: Option<extern "C" fn(*mut c_void)>,
}

impl Owned {
    pub(crate) fn new(context: *mut c_void, free: Option<extern "C" fn(*mut c_void)>) -> Self {
        Self {
            context: Context(context),
            free,
        }
    }

    pub(crate) fn pointer(&self) -> *mut c_void {
        self.context.0
    }

    /// Lets go of the value now. C must not block there: it may be the thread of a shard.
    pub(crate) fn end(&mut self) {
        if let Some(free) = self.free.take() {
            calling_back(|| free(self.context.0));
        }
    }

    /// Gives the value back to C, which keeps it because the function that brought it failed.
    pub(crate) fn disarm(&mut self) {
        self.free = None;
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.end();
    }
}

/// A text of C, as in `grpcxx_text`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CText {
    pub(crate) data: *const c_char,
    pub(crate) size: usize,
}

impl Default for CText {
    fn default() -> Self {
        Self {
            data: std::ptr::null(),
            size: 0,
        }
    }
}

impl CText {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self {
            data: bytes.as_ptr().cast(),
            size: bytes.len(),
        }
    }
}

/// An array of C.
///
/// # Safety
/// `data` is NULL, or points to `count` values that stay unchanged for `'a`.
pub(crate) unsafe fn array<'a, T>(
    name: &str,
    data: *const T,
    count: usize,
) -> Result<&'a [T], Status> {
    if count == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return Err(invalid(format!("{name} is NULL, but has {count} entries")));
    }
    if count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(invalid(format!(
            "{name} has {count} entries, more than memory can hold"
        )));
    }
    // SAFETY: stated by the caller, and not NULL and not too long.
    Ok(unsafe { std::slice::from_raw_parts(data, count) })
}

/// Texts of an array of C, copied.
///
/// # Safety
/// `data` is NULL or points to `count` texts, each of which is as for [`text`].
pub(crate) unsafe fn texts(
    name: &str,
    data: *const CText,
    count: usize,
) -> Result<Vec<Text>, Status> {
    // SAFETY: stated by the caller.
    let list = unsafe { array(name, data, count) }?;
    list.iter()
        .map(|entry| {
            // SAFETY: stated by the caller.
            unsafe { text(name, entry.data, entry.size) }.map(Text::from)
        })
        .collect()
}

/// Refuses a missing place for a result.
pub(crate) fn not_null<T>(name: &str, place: *const T) -> Result<(), Status> {
    if place.is_null() {
        return Err(invalid(format!("{name} is NULL")));
    }
    Ok(())
}

/// What a handle refers to.
///
/// # Safety
/// `handle` is NULL or lives for `'a`.
pub(crate) unsafe fn handle<'a, T>(name: &str, handle: *const T) -> Result<&'a T, Status> {
    // SAFETY: stated by the caller.
    unsafe { handle.as_ref() }.ok_or_else(|| invalid(format!("{name} is NULL")))
}

/// Another ownership of a counted handle.
///
/// # Safety
/// `handle` is NULL or was made by [`Arc::into_raw`] and lives.
pub(crate) unsafe fn counted<T>(handle: *const T) -> Option<Arc<T>> {
    if handle.is_null() {
        return None;
    }
    // SAFETY: stated by the caller; the count goes up before the ownership is made.
    unsafe {
        Arc::increment_strong_count(handle);
        Some(Arc::from_raw(handle))
    }
}

/// The body of every `_retain`.
///
/// # Safety
/// As for [`counted`].
pub(crate) unsafe fn retain<T>(handle: *const T) {
    if !handle.is_null() {
        // SAFETY: stated by the caller.
        unsafe { Arc::increment_strong_count(handle) };
    }
}

/// The body of every `_release`.
///
/// # Safety
/// `handle` is NULL or an ownership that the caller gives up.
pub(crate) unsafe fn release<T>(handle: *const T) {
    if !handle.is_null() {
        // SAFETY: stated by the caller.
        guarded((), || unsafe { Arc::decrement_strong_count(handle) });
    }
}

/// The body of every `_free`.
///
/// # Safety
/// `handle` is NULL or was made by [`Box::into_raw`], and the caller gives it up.
pub(crate) unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: stated by the caller.
        guarded((), || drop(unsafe { Box::from_raw(handle) }));
    }
}

/// Structures of C begin with their size, so that an older program's shorter ones are understood.
///
/// # Safety
/// `given` is NULL, or points to a structure that begins with its size and is as long as that says.
pub(crate) unsafe fn sized<T: Default>(name: &str, given: *const T) -> Result<T, Status> {
    let mut whole = T::default();
    if given.is_null() {
        return Ok(whole);
    }
    // SAFETY: the caller's structure begins with its size.
    let size = unsafe { given.cast::<usize>().read() };
    if size < size_of::<usize>() || size > STRUCT_BYTES_MAX {
        return Err(invalid(format!(
            "struct_size of {name} is {size}; set it to sizeof the structure"
        )));
    }
    let known = size.min(size_of::<T>());
    // SAFETY: both are at least `known` bytes long, and every type used here is plain values for
    // which all bytes that a C program writes are valid.
    unsafe {
        std::ptr::copy_nonoverlapping(given.cast::<u8>(), (&raw mut whole).cast::<u8>(), known);
    }
    Ok(whole)
}

/// No structure of the header will ever be longer.
const STRUCT_BYTES_MAX: usize = 4096;
