//! Tensors, and what is known of one before its data.

use grpcxx_memory::{Buffer, DeviceBuffer};

use crate::{Code, DType, Shape, Status};

/// What a tensor is, without its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMeta {
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub shape: Shape,
    /// The value of a branch that was not taken; its data means nothing.
    pub is_dead: bool,
    /// Length of the data: elements times their size, or that of the serialized TensorProto.
    pub data_bytes: u64,
}

impl TensorMeta {
    /// A tensor like this with that data. Inlined, so that it is made where it is wanted, which
    /// nothing that may panic must delay.
    #[inline(always)]
    pub(crate) fn tensor(&self, data: Buffer) -> Tensor {
        match self.shape.copied() {
            Some(shape) => Tensor {
                dtype: self.dtype,
                shape,
                is_dead: self.is_dead,
                data,
            },
            None => self.tensor_of_many_dimensions(data),
        }
    }

    #[cold]
    fn tensor_of_many_dimensions(&self, data: Buffer) -> Tensor {
        Tensor {
            dtype: self.dtype,
            shape: self.shape.clone(),
            is_dead: self.is_dead,
            data,
        }
    }

    /// Whether this is what [`Tensor::meta`] says of a tensor.
    #[inline]
    pub(crate) fn is_of(&self, tensor: &Tensor) -> bool {
        self.data_bytes == tensor.data.len() as u64
            && self.dtype == tensor.dtype
            && self.is_dead == tensor.is_dead
            && self.shape == tensor.shape
    }
}

/// A tensor and its data, as it travels.
#[derive(Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub shape: Shape,
    /// The value of a branch that was not taken; its data means nothing.
    pub is_dead: bool,
    /// Row-major little-endian elements; for strings, resources and variants a serialized
    /// TensorProto.
    pub data: Buffer,
}

impl Clone for Tensor {
    // A copy is made where it is wanted: on the way there it would be longer than all else that a
    // small call moves.
    #[inline]
    fn clone(&self) -> Self {
        Self {
            dtype: self.dtype,
            shape: self.shape.clone(),
            is_dead: self.is_dead,
            data: self.data.clone(),
        }
    }
}

impl Tensor {
    /// Copies the data if another process lends it, so that nobody can change it from here on.
    #[inline]
    pub fn make_private(&mut self) {
        if self.data.is_borrowed() {
            self.data = std::mem::take(&mut self.data).into_private();
        }
    }

    /// A live tensor over `data`.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the data is not as long as type and shape ask for.
    pub fn new(dtype: DType, shape: Shape, data: impl Into<Buffer>) -> Result<Self, Status> {
        let data = data.into();
        if let Some(expected) = dtype.data_bytes(shape.num_elements())
            && expected != data.len() as u128
        {
            return Err(Status::new(
                Code::InvalidArgument,
                format!(
                    "a {dtype} tensor of shape {shape} needs {expected} bytes of data, not {}",
                    data.len()
                ),
            ));
        }
        Ok(Self {
            dtype,
            shape,
            is_dead: false,
            data,
        })
    }

    /// A live tensor over data in memory of another device, by way of its copy on the host.
    ///
    /// # Errors
    /// As of [`Tensor::new`]; `INTERNAL` if the device fails to copy.
    pub fn from_device(dtype: DType, shape: Shape, data: &DeviceBuffer) -> Result<Self, Status> {
        let staged = data.stage().map_err(|error| {
            let text = format!("a {dtype} tensor in device memory cannot be read: {error}");
            Status::new(Code::Internal, text)
        })?;
        Self::new(dtype, shape, staged.clone())
    }

    /// The dead tensor that star peers send.
    pub fn dead() -> Self {
        Self {
            dtype: DType::Float32,
            shape: Shape::new(&[0]).expect("one empty dimension"),
            is_dead: true,
            data: Buffer::new(),
        }
    }

    /// The description of this tensor.
    pub fn meta(&self) -> TensorMeta {
        TensorMeta {
            dtype: self.dtype,
            shape: self.shape.clone(),
            is_dead: self.is_dead,
            data_bytes: self.data.len() as u64,
        }
    }
}
