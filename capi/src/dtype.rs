#![expect(unsafe_code, reason = "exported functions")]
//! What C may ask about element types.

use std::ffi::{CStr, c_char};
use std::ptr;
use std::sync::LazyLock;

use grpcxx_rpc::DType;

use crate::status::c_string;

/// Bytes of one element.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn grpcxx_dtype_size(dtype: i32) -> usize {
    DType::from_number(dtype)
        .and_then(DType::element_bytes)
        .unwrap_or(0)
}

/// The name of a type.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn grpcxx_dtype_name(dtype: i32) -> *const c_char {
    DType::from_number(dtype).map_or(ptr::null(), |dtype| {
        NAMES
            .iter()
            .find(|(named, _)| *named == dtype)
            .map_or(ptr::null(), |(_, name)| CStr::as_ptr(name))
    })
}

static NAMES: LazyLock<Vec<(DType, std::ffi::CString)>> = LazyLock::new(|| {
    DType::ALL
        .iter()
        .map(|dtype| (*dtype, c_string(dtype.name())))
        .collect()
});
