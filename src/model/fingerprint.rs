use std::fmt;
use std::str::FromStr;

use grpcxx_rpc::Tensor;
use twox_hash::xxhash3_128::Hasher;

/// Checksum (XXH3, 128 bits) of one tensor: name, type, shape and bytes. It finds accidents, not
/// forgery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(u128);

/// Checksum of a whole model, the same in whatever order its tensors came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModelFingerprint(u128);

impl Fingerprint {
    /// The checksum of `tensor` under `name`.
    pub fn of(name: &str, tensor: &Tensor) -> Self {
        let mut hasher = Hasher::new();
        write_text(&mut hasher, name);
        hasher.write(&[tensor.dtype.number()]);
        hasher.write(&(tensor.shape.rank() as u64).to_le_bytes());
        for dim in tensor.shape.dims() {
            hasher.write(&dim.to_le_bytes());
        }
        hasher.write(&(tensor.data.len() as u64).to_le_bytes());
        hasher.write(&tensor.data);
        Self(hasher.finish_128())
    }
}

impl ModelFingerprint {
    /// The checksum over the names and checksums of all tensors.
    pub fn of<'a>(tensors: impl IntoIterator<Item = (&'a str, Fingerprint)>) -> Self {
        let mut sorted: Vec<(&str, Fingerprint)> = tensors.into_iter().collect();
        sorted.sort_unstable();
        let mut hasher = Hasher::new();
        for (name, fingerprint) in sorted {
            write_text(&mut hasher, name);
            hasher.write(&fingerprint.0.to_le_bytes());
        }
        Self(hasher.finish_128())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for ModelFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for ModelFingerprint {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(text, 16).map(Self)
    }
}

fn write_text(hasher: &mut Hasher, text: &str) {
    hasher.write(&(text.len() as u64).to_le_bytes());
    hasher.write(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use grpcxx_rpc::{DType, Shape};

    fn tensor(dtype: DType, dims: &[u64], data: &[u8]) -> Tensor {
        Tensor::new(dtype, Shape::new(dims).unwrap(), data.to_vec()).unwrap()
    }

    #[test]
    fn name_type_shape_and_bytes_all_count() {
        let base = Fingerprint::of("a", &tensor(DType::Int16, &[2, 1], &[1, 2, 3, 4]));
        for (name, other) in [
            ("b", tensor(DType::Int16, &[2, 1], &[1, 2, 3, 4])),
            ("a", tensor(DType::UInt16, &[2, 1], &[1, 2, 3, 4])),
            ("a", tensor(DType::Int16, &[1, 2], &[1, 2, 3, 4])),
            ("a", tensor(DType::Int16, &[2], &[1, 2, 3, 4])),
            ("a", tensor(DType::Int16, &[2, 1], &[1, 2, 3, 5])),
        ] {
            assert_ne!(base, Fingerprint::of(name, &other));
        }
    }

    #[test]
    fn the_order_of_tensors_does_not_count_but_their_names_do() {
        let one = Fingerprint(1);
        let two = Fingerprint(2);
        let whole = ModelFingerprint::of([("a", one), ("b", two)]);
        assert_eq!(whole, ModelFingerprint::of([("b", two), ("a", one)]));
        assert_ne!(whole, ModelFingerprint::of([("a", two), ("b", one)]));
        assert_ne!(whole, ModelFingerprint::of([("a", one)]));
        assert_eq!(whole.to_string().parse(), Ok(whole));
    }
}
