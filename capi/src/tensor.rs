#![expect(unsafe_code, reason = "exported functions over pointers")]
//! `grpcxx_tensor`.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use grpcxx_memory::Buffer;
use grpcxx_rpc::{Code, DType, Shape, Status, Tensor};
use smallvec::SmallVec;

use crate::boundary::{
    CText, Context, array, bytes, handle, invalid, not_null, put, release, retain,
};
use crate::notices::calling_back;
use crate::status::{CStatus, reporting};

/// A tensor as C holds it.
pub(crate) struct CTensor {
    tensor: Tensor,
    dims: SmallVec<[i64; 6]>,
    /// Where the data is if it landed in memory of C, which nothing here keeps alive.
    landed: Option<Landed>,
    foreign: Option<Arc<Foreign>>,
}

/// Data in memory of C.
#[derive(Clone, Copy)]
pub(crate) struct Landed {
    data: *const u8,
    size: usize,
}

// SAFETY: the engine never looks behind the pointer.
unsafe impl Send for Landed {}
// SAFETY: as above.
unsafe impl Sync for Landed {}

/// Memory that C lends for a tensor; its drop gives it back.
pub(crate) struct Foreign {
    release: Option<ReleaseFn>,
    context: Context,
    was_delivered: AtomicBool,
}

pub(crate) type ReleaseFn = extern "C" fn(*mut c_void, bool);

impl CTensor {
    pub(crate) fn new(tensor: Tensor) -> Self {
        tensor.data.expose();
        Self {
            dims: tensor.shape.dims().iter().map(|&dim| dim as i64).collect(),
            tensor,
            landed: None,
            foreign: None,
        }
    }

    /// A tensor whose data landed in memory of C. What is left of its own is dropped here.
    pub(crate) fn landed(mut tensor: Tensor, landed: Landed) -> Self {
        tensor.data = Buffer::new();
        Self {
            landed: Some(landed),
            ..Self::new(tensor)
        }
    }

    /// The tensor to send or to keep, sharing its data.
    pub(crate) fn to_tensor(&self) -> Result<Tensor, Status> {
        if self.landed.is_some() {
            return Err(invalid(
                "the tensor landed in memory of the caller, which it does not keep; make one over that memory \
                 with grpcxx_tensor_new",
            ));
        }
        Ok(self.tensor.clone())
    }

    /// The memory of C behind it.
    pub(crate) fn foreign(&self) -> Option<&Arc<Foreign>> {
        self.foreign.as_ref()
    }

    fn data(&self) -> Landed {
        self.landed
            .unwrap_or_else(|| Landed::at(self.tensor.data.as_ptr(), self.tensor.data.len()))
    }
}

impl Landed {
    pub(crate) fn at(data: *const u8, size: usize) -> Self {
        Self { data, size }
    }
}

impl Foreign {
    /// Notes that an answer with this memory has left.
    pub(crate) fn set_delivered(&self) {
        self.was_delivered.store(true, Ordering::Relaxed);
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            let was_delivered = self.was_delivered.load(Ordering::Relaxed);
            calling_back(|| release(self.context.0, was_delivered));
        }
    }
}

/// The shape of dimensions that C gives.
///
/// # Safety
/// `dims` is NULL or points to `rank` numbers.
unsafe fn shape_of(dims: *const i64, rank: usize) -> Result<Shape, Status> {
    // SAFETY: stated by the caller.
    let dims = unsafe { array("dims", dims, rank) }?;
    let dims: Vec<u64> = dims
        .iter()
        .map(|&dim| {
            u64::try_from(dim)
                .map_err(|_| invalid(format!("dimensions {dims:?} have a negative one")))
        })
        .collect::<Result<_, _>>()?;
    Shape::new(&dims).map_err(|error| invalid(error.to_string()))
}

fn dtype_of(dtype: i32) -> Result<DType, Status> {
    DType::from_number(dtype)
        .ok_or_else(|| invalid(format!("{dtype} is no type of elements; see grpcxx_dtype")))
}

fn tensor_of(dtype: DType, shape: Shape, is_dead: bool, data: Buffer) -> Result<Tensor, Status> {
    let mut tensor = Tensor::new(dtype, shape, data)?;
    tensor.is_dead = is_dead;
    Ok(tensor)
}

/// Tensors of an array of handles.
///
/// # Safety
/// `tensors` is NULL or points to `count` handles, each NULL or alive for `'a`.
pub(crate) unsafe fn tensors_of<'a>(
    name: &str,
    tensors: *const *const CTensor,
    count: usize,
) -> Result<Vec<&'a CTensor>, Status> {
    // SAFETY: stated by the caller.
    let list = unsafe { array(name, tensors, count) }?;
    list.iter()
        .enumerate()
        .map(|(index, &tensor)| {
            // SAFETY: stated by the caller.
            unsafe { tensor.as_ref() }.ok_or_else(|| invalid(format!("{name}[{index}] is NULL")))
        })
        .collect()
}

/// Gives a new tensor to C.
///
/// # Safety
/// `place` is writable.
pub(crate) unsafe fn give(place: *mut *const CTensor, tensor: CTensor) {
    // SAFETY: stated by the caller.
    unsafe { put(place, Arc::into_raw(Arc::new(tensor))) };
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_tensor_new(
    dtype: i32,
    dims: *const i64,
    rank: usize,
    is_dead: bool,
    data: *const c_void,
    data_size: usize,
    release: Option<ReleaseFn>,
    context: *mut c_void,
    tensor: *mut *const CTensor,
) -> *mut CStatus {
    reporting(|| {
        // SAFETY: the header says what each pointer is.
        unsafe {
            not_null("tensor", tensor)?;
            let shape = shape_of(dims, rank)?;
            let dtype = dtype_of(dtype)?;
            // Checked before the memory is taken over, since a failure leaves it to the caller.
            let view = bytes("data", data.cast(), data_size)?;
            check_len(dtype, &shape, view.len())?;
            let foreign = Arc::new(Foreign {
                release,
                context: Context(context),
                was_delivered: AtomicBool::new(false),
            });
            let buffer = match NonNull::new(view.as_ptr().cast_mut()) {
                Some(start) if !view.is_empty() => {
                    Buffer::from_foreign(start, view.len(), Box::new(Arc::clone(&foreign)))
                }
                _ => Buffer::new(),
            };
            let content = Tensor {
                dtype,
                shape,
                is_dead,
                data: buffer,
            };
            give(
                tensor,
                CTensor {
                    foreign: Some(foreign),
                    ..CTensor::new(content)
                },
            );
        }
        Ok(())
    })
}

fn check_len(dtype: DType, shape: &Shape, data_size: usize) -> Result<(), Status> {
    match dtype.data_bytes(shape.num_elements()) {
        Some(expected) if expected != data_size as u128 => Err(invalid(format!(
            "a {dtype} tensor of shape {shape} needs {expected} bytes of data, not {data_size}"
        ))),
        Some(_) | None => Ok(()),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_tensor_copy_new(
    dtype: i32,
    dims: *const i64,
    rank: usize,
    is_dead: bool,
    data: *const c_void,
    data_size: usize,
    tensor: *mut *const CTensor,
) -> *mut CStatus {
    reporting(|| {
        // SAFETY: the header says what each pointer is.
        unsafe {
            not_null("tensor", tensor)?;
            let shape = shape_of(dims, rank)?;
            let data = bytes("data", data.cast(), data_size)?;
            let copy = tensor_of(
                dtype_of(dtype)?,
                shape,
                is_dead,
                Buffer::from(data.to_vec()),
            )?;
            give(tensor, CTensor::new(copy));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_tensor_strings_new(
    dims: *const i64,
    rank: usize,
    elements: *const CText,
    num_elements: usize,
    tensor: *mut *const CTensor,
) -> *mut CStatus {
    reporting(|| {
        // SAFETY: the header says what each pointer is.
        unsafe {
            not_null("tensor", tensor)?;
            let shape = shape_of(dims, rank)?;
            let elements = array("elements", elements, num_elements)?;
            let strings: Vec<&[u8]> = elements
                .iter()
                .map(|element| bytes("elements", element.data.cast(), element.size))
                .collect::<Result<_, _>>()?;
            give(tensor, CTensor::new(Tensor::from_strings(shape, strings)?));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_tensor_retain(tensor: *const CTensor) -> *const CTensor {
    // SAFETY: NULL or alive.
    unsafe { retain(tensor) };
    tensor
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_tensor_release(tensor: *const CTensor) {
    // SAFETY: NULL or an ownership of the caller.
    unsafe { release(tensor) };
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_tensor_dtype(tensor: *const CTensor) -> i32 {
    // SAFETY: NULL or alive.
    unsafe { tensor.as_ref() }.map_or(0, |tensor| i32::from(tensor.tensor.dtype.number()))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_tensor_rank(tensor: *const CTensor) -> usize {
    // SAFETY: NULL or alive.
    unsafe { tensor.as_ref() }.map_or(0, |tensor| tensor.dims.len())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_tensor_dims(tensor: *const CTensor) -> *const i64 {
    // SAFETY: NULL or alive.
    unsafe { tensor.as_ref() }.map_or(ptr::null(), |tensor| tensor.dims.as_ptr())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_tensor_is_dead(tensor: *const CTensor) -> bool {
    // SAFETY: NULL or alive.
    unsafe { tensor.as_ref() }.is_some_and(|tensor| tensor.tensor.is_dead)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_tensor_num_elements(tensor: *const CTensor) -> usize {
    // SAFETY: NULL or alive.
    unsafe { tensor.as_ref() }.map_or(0, |tensor| tensor.tensor.shape.num_elements() as usize)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_tensor_data(tensor: *const CTensor) -> *const c_void {
    // SAFETY: NULL or alive.
    unsafe { tensor.as_ref() }.map_or(ptr::null(), |tensor| tensor.data().data.cast())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_tensor_mutable_data(tensor: *const CTensor) -> *mut c_void {
    // SAFETY: NULL or alive.
    match unsafe { tensor.as_ref() } {
        Some(tensor) if tensor.landed.is_none() && tensor.tensor.data.is_unique() => {
            tensor.tensor.data.as_ptr().cast_mut().cast()
        }
        _ => ptr::null_mut(),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_tensor_data_size(tensor: *const CTensor) -> usize {
    // SAFETY: NULL or alive.
    unsafe { tensor.as_ref() }.map_or(0, |tensor| tensor.data().size)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_tensor_strings(
    tensor: *const CTensor,
    elements: *mut CText,
    capacity: usize,
) -> *mut CStatus {
    reporting(|| {
        // SAFETY: NULL or alive.
        let tensor = unsafe { handle("tensor", tensor) }?;
        let strings = tensor.to_tensor()?.strings()?;
        if strings.len() > capacity {
            return Err(Status::new(
                Code::InvalidArgument,
                format!(
                    "there is room for {capacity} strings, the tensor has {}",
                    strings.len()
                ),
            ));
        }
        if elements.is_null() && !strings.is_empty() {
            return Err(invalid("elements is NULL"));
        }
        for (index, string) in strings.iter().enumerate() {
            // SAFETY: there is room for as many, and the strings are parts of the tensor's data, or
            // empty.
            unsafe { elements.add(index).write(CText::of(string)) };
        }
        Ok(())
    })
}
