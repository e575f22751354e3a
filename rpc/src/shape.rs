//! Shapes: dimensions of any number, held without a box where they are few.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::num::NonZeroUsize;

use crate::{Code, Status};

/// Dimensions of a tensor, outermost first; a scalar has none.
#[derive(PartialEq, Eq)]
pub struct Shape(Dims);

/// Few dimensions lie in the shape itself, so that it is copied and compared as a whole, word by
/// word.
#[derive(Eq)]
enum Dims {
    /// One less of the array than the number says, which leaves its 0 for the other variant; all
    /// others are 0.
    Few(NonZeroUsize, [u64; FEW_MAX]),
    /// More than fit into the array.
    Many(Box<[u64]>),
}

/// A shape whose number of elements is no 63-bit number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the product of the dimensions {} does not fit into 63 bits",
    Shown(dims)
)]
pub struct ShapeError {
    /// The dimensions as given.
    pub dims: Vec<u64>,
}

impl From<ShapeError> for Status {
    fn from(error: ShapeError) -> Self {
        Self::new(Code::InvalidArgument, error.to_string())
    }
}

impl Shape {
    /// The shape of a scalar.
    pub const SCALAR: Self = Self(Dims::Few(NonZeroUsize::MIN, [0; FEW_MAX]));

    /// A shape with these dimensions.
    ///
    /// # Errors
    /// The number of elements overflows 63 bits.
    pub fn new(dims: &[u64]) -> Result<Self, ShapeError> {
        let mut count: u64 = 1;
        let mut fits = true;
        for &dim in dims {
            // A zero dimension makes the tensor empty, however large the others are.
            count = match count.checked_mul(dim) {
                Some(product) if i64::try_from(product).is_ok() => product,
                _ => {
                    fits = false;
                    1
                }
            };
        }
        if !fits && !dims.contains(&0) {
            return Err(ShapeError {
                dims: dims.to_vec(),
            });
        }
        let mut few = [0; FEW_MAX];
        Ok(Self(match few.get_mut(..dims.len()) {
            Some(place) => {
                place.copy_from_slice(dims);
                Dims::Few(NonZeroUsize::MIN.saturating_add(dims.len()), few)
            }
            None => Dims::Many(dims.into()),
        }))
    }

    /// The shape of as many elements in one dimension.
    pub fn vector(len: usize) -> Self {
        let mut few = [0; FEW_MAX];
        few[0] = len as u64;
        Self(Dims::Few(NonZeroUsize::MIN.saturating_add(1), few))
    }

    /// The dimensions.
    #[inline]
    pub fn dims(&self) -> &[u64] {
        match &self.0 {
            Dims::Few(end, dims) => &dims[..end.get() - 1],
            Dims::Many(dims) => dims,
        }
    }

    /// A copy, if that needs no memory.
    #[inline]
    pub(crate) fn copied(&self) -> Option<Self> {
        match &self.0 {
            Dims::Few(end, dims) => Some(Self(Dims::Few(*end, *dims))),
            Dims::Many(_) => None,
        }
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.dims().len()
    }

    /// Product of the dimensions: 1 for a scalar, 0 if any is 0.
    pub fn num_elements(&self) -> u64 {
        if self.dims().contains(&0) {
            return 0;
        }
        self.dims().iter().product()
    }
}

impl Clone for Shape {
    #[inline]
    fn clone(&self) -> Self {
        Self(match &self.0 {
            Dims::Few(end, dims) => Dims::Few(*end, *dims),
            Dims::Many(dims) => Dims::Many(dims.clone()),
        })
    }
}

impl PartialEq for Dims {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            // All words at once: to call for a comparison of bytes takes longer.
            (Self::Few(end, dims), Self::Few(other_end, other_dims)) => {
                let words = dims.iter().zip(other_dims);
                let difference = words.fold(0, |all, (dim, other)| all | (dim ^ other));
                end == other_end && difference == 0
            }
            (Self::Many(dims), Self::Many(other_dims)) => dims == other_dims,
            (Self::Few(..) | Self::Many(_), _) => false,
        }
    }
}

impl Default for Shape {
    fn default() -> Self {
        Self::SCALAR
    }
}

impl Hash for Shape {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.dims().hash(state);
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shape({self})")
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Shown(self.dims()).fmt(f)
    }
}

/// Dimensions as text, of which a peer decides how many there are.
struct Shown<'a>(&'a [u64]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = f.debug_list();
        match self.0.get(..DIMS_SHOWN_MAX) {
            Some(shown) if self.0.len() > DIMS_SHOWN_MAX => {
                let more = self.0.len() - DIMS_SHOWN_MAX;
                list.entries(shown).entry(&format_args!("{more} more"));
            }
            Some(_) | None => {
                list.entries(self.0);
            }
        }
        list.finish()
    }
}

/// Dimensions that a text shows.
const DIMS_SHOWN_MAX: usize = 16;
/// Most dimensions that lie in the shape itself.
const FEW_MAX: usize = 6;

const _: () = assert!(size_of::<Shape>() == 8 + 8 * FEW_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_that_overflow_are_refused_unless_empty() {
        assert!(Shape::new(&[1 << 32, 1 << 32]).is_err());
        assert!(Shape::new(&[1 << 63]).is_err());
        assert_eq!(
            Shape::new(&[1 << 40, 0, 1 << 40]).unwrap().num_elements(),
            0
        );
        assert_eq!(Shape::new(&[2, 3]).unwrap().num_elements(), 6);
        assert_eq!(Shape::SCALAR.num_elements(), 1);
        assert_eq!(Shape::default().rank(), 0);
    }

    #[test]
    fn shapes_of_any_rank_keep_their_dimensions() {
        for rank in 0..=2 * FEW_MAX {
            let dims = vec![2; rank];
            let shape = Shape::new(&dims).unwrap();
            assert_eq!(shape.dims(), dims);
            assert_eq!(shape.clone(), shape);
            assert_eq!(shape.copied(), (rank <= FEW_MAX).then_some(shape.clone()));
            assert_eq!(shape.num_elements(), 1 << rank);
            let longer = Shape::new(&[&dims[..], &[1]].concat()).unwrap();
            assert_ne!(longer, shape);
        }
        let shape = Shape::new(&[2, 3]).unwrap();
        assert_eq!(format!("{shape} {shape:?}"), "[2, 3] Shape([2, 3])");
    }

    #[test]
    fn texts_of_many_dimensions_are_short() {
        let ones = vec![1; 1_000_000];
        let text = Shape::new(&ones).unwrap().to_string();
        assert!(
            text.starts_with("[1, 1, ") && text.ends_with(", 1, 999984 more]"),
            "{text}"
        );
        let error = Shape::new(&[u64::MAX].repeat(1_000_000)).unwrap_err();
        assert!(error.to_string().len() < 1000, "{error}");
        let few = vec![1; DIMS_SHOWN_MAX];
        let text = Shape::new(&few).unwrap().to_string();
        assert!(!text.contains("more"), "{text}");
    }
}
