#![expect(unsafe_code, reason = "exported functions")]
//! Versions of the library and of its interface.

use std::ffi::{CStr, c_char};

/// Changes when the header changes incompatibly.
pub(crate) const ABI_VERSION: u32 = 1;

/// The interface's version.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn grpcxx_abi_version() -> u32 {
    ABI_VERSION
}

/// The library's version.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn grpcxx_version() -> *const c_char {
    VERSION.as_ptr()
}

const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };
