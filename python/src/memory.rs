#![expect(
    unsafe_code,
    reason = "memory of arrays becomes buffers, and buffers become arrays"
)]
//! Memory that Python and the engine share, and who keeps it alive; threads of the engine in
//! Python.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use grpcxx_memory::{Buffer, BufferMut};
use numpy::npyffi::{
    _PyArray_GET_ITEM_DATA, NPY_ARRAY_ALIGNED, NPY_ARRAY_WRITEABLE, NpyTypes, get_type_object,
    npy_intp,
};
use numpy::{
    PY_ARRAY_API, PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::ffi::{
    PyGILState_Ensure, PyGILState_GetThisThreadState, PyGILState_Release, PyGILState_STATE,
    PyThreadState,
};
use pyo3::prelude::*;
use smallvec::SmallVec;

use crate::pool;

/// An array that the engine needs, on whatever thread.
struct Held(Option<Py<PyUntypedArray>>);

/// Memory of an array into which one tensor may be received.
pub(crate) struct Place {
    start: NonNull<u8>,
    len: usize,
    is_taken: AtomicBool,
    array: Arc<Held>,
}

// SAFETY: the memory is the array's, which `array` keeps alive, and only one buffer over it is ever
// made.
unsafe impl Send for Place {}
// SAFETY: as above; the flag decides who makes that buffer.
unsafe impl Sync for Place {}

/// Memory of the pool into which a tensor is received, and which is an array's alone afterwards.
///
/// A link must not put memory of its own in its place, as it may where the memory is an arena's.
pub(crate) struct Brought(Arc<BufferMut>);

/// Memory of the engine behind an array.
#[pyclass(frozen, module = "grpcxx._native")]
struct Memory {
    buffer: Buffer,
}

/// Bytes that no other thread of Python touches while this one copies without the interpreter.
struct Bytes(*mut u8);

// SAFETY: whoever makes it keeps the memory alive for as long as it is used.
unsafe impl Send for Bytes {}

impl Drop for Memory {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        if buffer.len() >= pool::ARRAY_BYTES_MIN {
            drop(buffer);
            pool::settle();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Without the interpreter the reference waits in a list of PyO3, which the next call into
        // this library empties. The main thread is asked to do so soon, since there may be none for
        // long.
        drop(self.0.take());
        if !IS_RELEASING.swap(true, Ordering::AcqRel) {
            // SAFETY: both may be called from any thread, without the interpreter.
            let is_asked = unsafe {
                pyo3::ffi::Py_IsInitialized() != 0
                    && pyo3::ffi::Py_AddPendingCall(Some(release), ptr::null_mut()) == 0
            };
            if !is_asked {
                IS_RELEASING.store(false, Ordering::Release);
            }
        }
    }
}

/// Lets go of what threads without the interpreter have dropped.
extern "C" fn release(_: *mut c_void) -> c_int {
    IS_RELEASING.store(false, Ordering::Release);
    Python::attach(|_| ());
    0
}

/// Runs code with the interpreter on a thread of the engine; `None` if the interpreter has ended.
pub(crate) fn attached<R>(code: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    Python::try_attach(|py| {
        KEPT_STATE.with(|kept| kept.keep(py));
        code(py)
    })
}

/// The memory of a contiguous array as a buffer, which keeps the array.
pub(crate) fn lent(array: &Bound<'_, PyUntypedArray>, bytes: usize) -> Buffer {
    assert!(array.is_c_contiguous(), "the array has gaps");
    let Some(start) = NonNull::new(data_of(array)) else {
        return Buffer::new();
    };
    let held = Held(Some(array.clone().unbind()));
    // SAFETY: a contiguous array has so many bytes there as long as it lives, and the documents of
    // the package say that they stay as they are while the engine uses them.
    unsafe { Buffer::from_foreign(start, bytes, Box::new(held)) }
}

/// The same memory, which keeps `user` too until nobody uses it any more.
pub(crate) fn with_user(buffer: Buffer, user: impl Send + 'static) -> Buffer {
    let Some(start) = NonNull::new(buffer.as_ptr().cast_mut()) else {
        return buffer;
    };
    let len = buffer.len();
    // SAFETY: the buffer keeps its bytes as they are until it is dropped, with the user.
    unsafe { Buffer::from_foreign(start, len, Box::new((user, buffer))) }
}

/// Bytes that somebody else may change later, as they are now.
pub(crate) fn copy_of(data: &[u8]) -> Buffer {
    pool::lendable_copy(data).unwrap_or_else(|| Buffer::from(data.to_vec()))
}

/// The bytes of a contiguous array as they are now.
pub(crate) fn copied(array: &Bound<'_, PyUntypedArray>, bytes: usize) -> Buffer {
    assert!(array.is_c_contiguous(), "the array has gaps");
    if bytes == 0 {
        return Buffer::new();
    }
    // SAFETY: a contiguous array has so many bytes there, and this thread has the interpreter.
    copy_of(unsafe { std::slice::from_raw_parts(data_of(array), bytes) })
}

/// The addresses of the bytes of a contiguous array.
pub(crate) fn range_of(array: &Bound<'_, PyUntypedArray>) -> Range<usize> {
    let start = data_of(array).addr();
    start..start + bytes_of(array)
}

/// The addresses between the first and the last byte of an array, whatever its strides.
pub(crate) fn extent_of(array: &Bound<'_, PyUntypedArray>) -> Range<usize> {
    let start = data_of(array).addr();
    if array.is_empty() {
        return start..start;
    }
    let (mut low, mut high) = (start, start);
    for (&size, &stride) in array.shape().iter().zip(array.strides()) {
        let reach = stride.unsigned_abs() * (size - 1);
        match stride < 0 {
            true => low = low.saturating_sub(reach),
            false => high = high.saturating_add(reach),
        }
    }
    low..high.saturating_add(array.dtype().itemsize())
}

impl Place {
    /// The memory of a contiguous and writable array; `None` if it has no bytes.
    pub(crate) fn of(array: &Bound<'_, PyUntypedArray>, bytes: usize) -> Option<Self> {
        assert!(array.is_c_contiguous(), "the array has gaps");
        let start = NonNull::new(data_of(array))?;
        (bytes > 0).then(|| Self {
            start,
            len: bytes,
            is_taken: AtomicBool::new(false),
            array: Arc::new(Held(Some(array.clone().unbind()))),
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The memory, once. `user` is dropped when nothing writes there any more.
    pub(crate) fn take(&self, user: impl Send + 'static) -> Option<BufferMut> {
        if self.is_taken.swap(true, Ordering::AcqRel) {
            return None;
        }
        let owner = Box::new((user, Arc::clone(&self.array)));
        // SAFETY: a contiguous array has so many bytes there as long as it lives, which the owner
        // sees to; no other buffer over them is made here, and the documents say that nobody else
        // uses `out` during the call.
        Some(unsafe { BufferMut::from_foreign(self.start, self.len, owner) })
    }
}

impl Brought {
    /// The memory, and what receives into it.
    pub(crate) fn new(mut memory: BufferMut) -> (Self, BufferMut) {
        let (start, len) = (NonNull::from(&mut memory[..]).cast(), memory.len());
        let memory = Arc::new(memory);
        let owner = Box::new(Arc::clone(&memory));
        // SAFETY: the bytes are those of a block of the pool, which the owner keeps, and nobody
        // looks at them before `take` finds that this buffer is gone.
        let landing = unsafe { BufferMut::from_foreign(start, len, owner) };
        (Self(memory), landing)
    }

    /// The memory, once nothing is received into it any more.
    pub(crate) fn take(self) -> Option<Buffer> {
        Arc::into_inner(self.0).map(BufferMut::freeze)
    }
}

/// A new array with these bytes.
///
/// # Panics
/// If type and dimensions ask for another number of bytes.
pub(crate) fn array_with<'py>(
    descr: Bound<'py, PyArrayDescr>,
    dims: &[u64],
    bytes: &[u8],
) -> PyResult<Bound<'py, PyAny>> {
    let py = descr.py();
    let array = new_array(descr, dims, None, 0)?;
    assert_eq!(bytes_of(&array), bytes.len(), "the array has another size");
    fill(py, &array, bytes);
    Ok(array.into_any())
}

/// Copies bytes into a contiguous array, without the interpreter if they are many.
///
/// # Panics
/// If the array has another number of bytes.
pub(crate) fn fill(py: Python<'_>, array: &Bound<'_, PyUntypedArray>, bytes: &[u8]) {
    assert!(array.is_c_contiguous(), "the array has gaps");
    assert_eq!(bytes_of(array), bytes.len(), "the array has another size");
    if bytes.is_empty() {
        return;
    }
    let target = Bytes(data_of(array));
    let copy = move || {
        let Bytes(target) = { target };
        // SAFETY: the array has as many bytes, as just asserted, and lives until its borrow ends;
        // it is not the buffer, since that one is read-only.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
    };
    match bytes.len() >= DETACHED_BYTES_MIN {
        true => py.detach(copy),
        false => copy(),
    }
}

/// An array over the memory of a buffer, which it keeps.
pub(crate) fn view<'py>(
    descr: Bound<'py, PyArrayDescr>,
    dims: &[u64],
    buffer: Buffer,
    is_writable: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let py = descr.py();
    buffer.expose();
    let start = buffer.as_ptr().cast_mut();
    let is_aligned = start.addr().is_multiple_of(descr.alignment().max(1));
    let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
    let flags = flag(is_aligned, NPY_ARRAY_ALIGNED) | flag(is_writable, NPY_ARRAY_WRITEABLE);
    let bytes = buffer.len();
    let memory = Bound::new(py, Memory { buffer })?;
    let array = new_array(descr, dims, NonNull::new(start), flags)?;
    assert_eq!(bytes_of(&array), bytes, "the array has another size");
    let (target, base) = (array.as_array_ptr(), memory.into_any().into_ptr());
    // SAFETY: the array is new and has no base, and takes over the reference.
    match unsafe { PY_ARRAY_API.PyArray_SetBaseObject(py, target, base) } {
        0 => Ok(array.into_any()),
        _ => Err(PyErr::fetch(py)),
    }
}

/// Whether an array is one of NumPy's own, and of no subclass.
pub(crate) fn is_exactly_array(array: &Bound<'_, PyUntypedArray>) -> bool {
    // SAFETY: the type of an object is read, and compared with one that lives as long as NumPy.
    unsafe { (*array.as_ptr()).ob_type == get_type_object(array.py(), NpyTypes::PyArray_Type) }
}

/// Bytes of the elements of an array.
pub(crate) fn bytes_of(array: &Bound<'_, PyUntypedArray>) -> usize {
    array.len() * array.dtype().itemsize()
}

/// Whether the array has bytes of the buffer.
pub(crate) fn overlaps(array: &Bound<'_, PyUntypedArray>, buffer: &Buffer) -> bool {
    buffer.overlaps(data_of(array), bytes_of(array))
}

/// Whether elements of the array may be changed.
pub(crate) fn is_writable(array: &Bound<'_, PyUntypedArray>) -> bool {
    // SAFETY: the array is alive.
    unsafe { (*_PyArray_GET_ITEM_DATA(array.as_array_ptr())).flags & NPY_ARRAY_WRITEABLE != 0 }
}

fn data_of(array: &Bound<'_, PyUntypedArray>) -> *mut u8 {
    // SAFETY: the array is alive.
    unsafe { (*_PyArray_GET_ITEM_DATA(array.as_array_ptr())).data.cast() }
}

/// An array over `data`, or over new memory.
fn new_array<'py>(
    descr: Bound<'py, PyArrayDescr>,
    dims: &[u64],
    data: Option<NonNull<u8>>,
    flags: c_int,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = descr.py();
    let mut dims: SmallVec<[npy_intp; 6]> = dims.iter().map(|&dim| dim as npy_intp).collect();
    let data = data.map_or(ptr::null_mut(), NonNull::as_ptr);
    // SAFETY: the type is NumPy's own, the reference to `descr` is given away as the function wants
    // it, and there are as many dimensions as said.
    unsafe {
        let array = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            get_type_object(py, NpyTypes::PyArray_Type),
            descr.into_dtype_ptr(),
            dims.len() as c_int,
            dims.as_mut_ptr(),
            ptr::null_mut(),
            data.cast(),
            flags,
            ptr::null_mut(),
        );
        let array = Bound::from_owned_ptr_or_err(py, array)?;
        Ok(array.cast_into_unchecked())
    }
}

/// Copies of this many bytes take longer than to let go of the interpreter and to take it again.
const DETACHED_BYTES_MIN: usize = 1 << 18;

/// The state of the interpreter that a thread of the engine keeps until it ends, so that Python
/// does not make another one for each call.
struct KeptState(Cell<*mut PyThreadState>);

impl KeptState {
    fn keep(&self, _: Python<'_>) {
        if self.0.get().is_null() {
            // SAFETY: the thread has the interpreter, and gives the reference back at its end.
            self.0.set(unsafe {
                PyGILState_Ensure();
                PyGILState_GetThisThreadState()
            });
        }
    }
}

impl Drop for KeptState {
    fn drop(&mut self) {
        let kept = self.0.get();
        // SAFETY: it may be called on any thread, at any time. A thread of Python's own has no
        // state any more by now.
        let is_here = !kept.is_null() && unsafe { PyGILState_GetThisThreadState() } == kept;
        if is_here {
            LEAVING.fetch_add(1, Ordering::SeqCst);
            // Who asks for the interpreter while it ends is ended by it.
            if !IS_ENDING.load(Ordering::SeqCst) {
                // SAFETY: the thread has the interpreter, and the reference is the one that it
                // kept.
                Python::try_attach(|_| unsafe {
                    PyGILState_Release(PyGILState_STATE::PyGILState_LOCKED)
                });
            }
            LEAVING.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Lets threads end from now on without the interpreter, and says whether one that ends still needs
/// it.
pub(crate) fn let_interpreter_end() -> bool {
    IS_ENDING.store(true, Ordering::SeqCst);
    LEAVING.load(Ordering::SeqCst) > 0
}

/// Whether the interpreter is about to end.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Threads that end, and give back their state of the interpreter.
static LEAVING: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static KEPT_STATE: KeptState = const { KeptState(Cell::new(ptr::null_mut())) };
}

/// Whether the main thread was asked to let go of what was dropped.
static IS_RELEASING: AtomicBool = AtomicBool::new(false);

const _: () = assert!(size_of::<npy_intp>() == size_of::<usize>());
