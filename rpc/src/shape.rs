use std::fmt;

use smallvec::SmallVec;

/// Dimensions of a tensor, outermost first; a scalar has none.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: SmallVec<[u64; 6]>,
}

/// A shape whose number of elements is no 63-bit number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the product of the dimensions {dims:?} does not fit into 63 bits")]
pub struct ShapeError {
    /// The dimensions as given.
    pub dims: Vec<u64>,
}

impl Shape {
    /// The shape of a scalar.
    pub const SCALAR: Self = Self {
        dims: SmallVec::new_const(),
    };

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
        Ok(Self {
            dims: SmallVec::from_slice(dims),
        })
    }

    /// The dimensions.
    pub fn dims(&self) -> &[u64] {
        &self.dims
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Product of the dimensions: 1 for a scalar, 0 if any is 0.
    pub fn num_elements(&self) -> u64 {
        if self.dims.contains(&0) {
            return 0;
        }
        self.dims.iter().product()
    }
}

impl Clone for Shape {
    #[inline]
    fn clone(&self) -> Self {
        // A copy as a whole; that of the vector goes number by number.
        Self {
            dims: SmallVec::from_slice(&self.dims),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.dims.iter()).finish()
    }
}

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
    }
}
