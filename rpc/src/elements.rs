//! Tensors made of Rust values, and values read from tensors.

use std::any::TypeId;
use std::borrow::Cow;

use bytes::Bytes;
use grpcxx_memory::Buffer;

use crate::{Code, DType, Shape, Status, Tensor};

/// A Rust type whose memory image is that of a tensor's elements.
pub trait Element: bytemuck::NoUninit + bytemuck::CheckedBitPattern + Send + Sync {
    /// The type on the wire.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident,)*) => {
        $(
            impl Element for $rust {
                const DTYPE: DType = DType::$dtype;
            }
            const _: () = assert!(
                matches!(DType::$dtype.element_bytes(), Some(bytes) if bytes == size_of::<$rust>())
            );
        )*
    };
}

elements! {
    f32 => Float32,
    f64 => Float64,
    i8 => Int8,
    i16 => Int16,
    i32 => Int32,
    i64 => Int64,
    u8 => UInt8,
    u16 => UInt16,
    u32 => UInt32,
    u64 => UInt64,
    bool => Bool,
}

impl Tensor {
    /// A live tensor with a copy of these elements, row-major.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if there are not as many elements as the shape asks for.
    pub fn from_slice<T: Element>(shape: Shape, elements: &[T]) -> Result<Self, Status> {
        let bytes: &[u8] = bytemuck::cast_slice(elements);
        Self::new(T::DTYPE, shape, bytes.to_vec())
    }

    /// A live tensor over these elements, row-major, without a copy.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if there are not as many elements as the shape asks for.
    pub fn from_vec<T: Element>(shape: Shape, elements: Vec<T>) -> Result<Self, Status> {
        let bytes = Bytes::from_owner(Elements(elements));
        Self::new(T::DTYPE, shape, Buffer::from(bytes))
    }

    /// A live scalar.
    pub fn scalar<T: Element>(value: T) -> Self {
        Self {
            dtype: T::DTYPE,
            shape: Shape::SCALAR,
            is_dead: false,
            data: Buffer::from(Bytes::from_owner(Elements(vec![value]))),
        }
    }

    /// A live tensor of one dimension over these elements, without a copy.
    pub fn vector<T: Element>(elements: Vec<T>) -> Self {
        Self {
            dtype: T::DTYPE,
            shape: Shape::vector(elements.len()),
            is_dead: false,
            data: Buffer::from(Bytes::from_owner(Elements(elements))),
        }
    }

    /// The only element.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if there are more or none, or as of [`Tensor::elements`].
    pub fn value<T: Element>(&self) -> Result<T, Status> {
        match self.elements()?.as_ref() {
            [value] => Ok(*value),
            _ => Err(Status::new(
                Code::InvalidArgument,
                format!("one {} is wanted, not the shape {}", T::DTYPE, self.shape),
            )),
        }
    }

    /// The elements, row-major. `None` if the tensor has another type, is dead, its data does not
    /// lie as `T` must lie in memory, or another process lends it and could write what is no `T`.
    /// [`Tensor::elements`] copies in the last two cases.
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        let may_become_invalid = self.data.is_borrowed() && !is_any_bits::<T>();
        if self.dtype != T::DTYPE || self.is_dead || may_become_invalid {
            return None;
        }
        bytemuck::checked::try_cast_slice(&self.data).ok()
    }

    /// The elements, row-major. They are copied only if the data does not lie as `T` must lie in
    /// memory, or if another process lends it and not all bytes are a `T`.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the tensor has another type or is dead, or a byte of a bool is not 0
    /// or 1.
    pub fn elements<T: Element>(&self) -> Result<Cow<'_, [T]>, Status> {
        if let Some(elements) = self.as_slice() {
            return Ok(Cow::Borrowed(elements));
        }
        if self.dtype != T::DTYPE || self.is_dead {
            let found = if self.is_dead {
                "dead"
            } else {
                self.dtype.name()
            };
            return Err(Status::new(
                Code::InvalidArgument,
                format!("the tensor is {found}, not {}", T::DTYPE),
            ));
        }
        // Nobody changes between the check and the use what is private.
        let data = match is_any_bits::<T>() {
            true => self.data.clone(),
            false => self.data.clone().into_private(),
        };
        let elements = data.chunks_exact(size_of::<T>());
        let elements: Result<Vec<T>, _> = elements
            .map(bytemuck::checked::try_pod_read_unaligned)
            .collect();
        elements.map(Cow::Owned).map_err(|_| {
            Status::new(
                Code::InvalidArgument,
                format!("the data of the tensor holds no {} values", T::DTYPE),
            )
        })
    }
}

/// Whether all bytes are a value of the type.
fn is_any_bits<T: Element>() -> bool {
    TypeId::of::<T>() == TypeId::of::<T::Bits>()
}

struct Elements<T>(Vec<T>);

impl<T: Element> AsRef<[u8]> for Elements<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::borrowed::borrowed;

    /// Whoever lends the memory can write a 2 there, and no bool is 2.
    #[test]
    fn bools_are_not_looked_at_where_another_process_may_write() {
        let shape = || Shape::new(&[2]).unwrap();
        let bools = Tensor::new(DType::Bool, shape(), borrowed(&[1, 0])).unwrap();
        assert_eq!(bools.as_slice::<bool>(), None);
        let elements = bools.elements::<bool>().unwrap();
        assert!(matches!(elements, Cow::Owned(_)));
        assert_eq!(elements[..], [true, false]);
        let bytes = Tensor::new(DType::UInt8, shape(), borrowed(&[1, 2])).unwrap();
        assert_eq!(bytes.as_slice::<u8>(), Some(&[1, 2][..]));
        let none = Tensor::new(DType::Bool, shape(), borrowed(&[1, 2])).unwrap();
        assert!(none.elements::<bool>().is_err());
    }

    #[test]
    fn elements_come_back() {
        let shape = || Shape::new(&[2, 2]).unwrap();
        let floats = [1.0f32, -2.5, f32::MAX, 0.0];
        let copied = Tensor::from_slice(shape(), &floats).unwrap();
        let moved = Tensor::from_vec(shape(), floats.to_vec()).unwrap();
        assert_eq!(copied, moved);
        assert_eq!(moved.as_slice::<f32>(), Some(&floats[..]));
        assert_eq!(moved.as_slice::<i32>(), None);
        assert_eq!(Tensor::scalar(7i64).as_slice::<i64>(), Some(&[7][..]));
        assert!(Tensor::from_slice(shape(), &[1u8]).is_err());
        assert!(Tensor::dead().elements::<f32>().is_err());
    }

    #[test]
    fn data_that_lies_askew_is_copied() {
        let bytes = Buffer::from(vec![0u8, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0]);
        let shape = Shape::new(&[2]).unwrap();
        for offset in 0..4 {
            let data = bytes.slice(offset..offset + 8);
            let tensor = Tensor::new(DType::Int32, shape.clone(), data).unwrap();
            assert_eq!(tensor.elements::<i32>().unwrap().len(), 2);
        }
        let data = bytes.slice(1..9);
        let tensor = Tensor::new(DType::Int32, shape, data).unwrap();
        assert_eq!(&tensor.elements::<i32>().unwrap()[..], [1, 2]);
    }

    #[test]
    fn bytes_that_are_no_bools_are_refused() {
        let shape = Shape::new(&[2]).unwrap();
        let tensor = Tensor::new(DType::Bool, shape.clone(), vec![1, 0]).unwrap();
        assert_eq!(tensor.as_slice::<bool>(), Some(&[true, false][..]));
        let tensor = Tensor::new(DType::Bool, shape, vec![1, 2]).unwrap();
        assert_eq!(tensor.as_slice::<bool>(), None);
        assert!(tensor.elements::<bool>().is_err());
    }
}
