//! The bytes of heads that come before all data.

use smallvec::SmallVec;

use crate::wire::{
    Malformed, Problem, RECORD_BYTES, Reader, RecordError, ShapeForms, decode_record, encode_record,
};
use crate::{Status, Tensor, TensorMeta};

/// What the tensors of a response are, where that comes before all of their data: runs of tensors
/// that are alike.
///
/// A run is the number of its tensors, a u32, and one record head. The data of all tensors follows
/// the last run, each filled up to a multiple of [`DATA_ALIGNMENT_BYTES`], so that it can be read
/// into one piece of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heads {
    runs: SmallVec<[(u32, TensorMeta); 1]>,
}

/// Heads that no correct peer sends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadsError {
    /// They are not runs, or not of so many tensors as were asked for.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A tensor contradicts itself.
    #[error("tensor {index}: {cause}")]
    Record {
        /// The first tensor of its run.
        index: usize,
        /// What is wrong.
        cause: RecordError,
    },
}

impl Heads {
    /// Reads the heads of `wanted` tensors.
    ///
    /// # Errors
    /// The bytes are no heads, or those of more or fewer tensors.
    pub fn decode(bytes: &[u8], wanted: usize, forms: ShapeForms) -> Result<Self, HeadsError> {
        let mut reader = Reader::new("the heads of a response", bytes);
        let mut runs = SmallVec::new();
        let mut left = wanted;
        while !reader.is_empty() {
            let index = wanted - left;
            let count = reader.count("the number of tensors that are alike", left)?;
            if count == 0 {
                return Err(reader
                    .malformed("a tensor of a run", Problem::Missing)
                    .into());
            }
            left -= count;
            let head = reader.array::<RECORD_BYTES>("a record head")?;
            let meta =
                decode_record(&head, forms).map_err(|cause| HeadsError::Record { index, cause })?;
            runs.push((count as u32, meta));
        }
        if left > 0 {
            let problem = Problem::Short {
                wanted_bytes: RUN_BYTES as u64,
                left_bytes: 0,
            };
            return Err(reader.malformed("a run of tensors", problem).into());
        }
        Ok(Self { runs })
    }

    /// Each run: how many tensors, and what each of them is.
    pub fn runs(&self) -> &[(u32, TensorMeta)] {
        &self.runs
    }

    /// Length of the data of all tensors, filled up; saturates.
    pub fn data_bytes(&self) -> u64 {
        let bytes = |(count, meta): &(u32, TensorMeta)| {
            filled_up(meta.data_bytes).saturating_mul(u64::from(*count))
        };
        self.runs.iter().map(bytes).fold(0, u64::saturating_add)
    }
}

/// Appends the heads of tensors.
///
/// # Errors
/// As of [`encode_record`].
pub fn encode_heads(
    tensors: &[Tensor],
    forms: ShapeForms,
    out: &mut Vec<u8>,
) -> Result<(), Status> {
    for run in tensors.chunk_by(are_alike) {
        let count = u32::try_from(run.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&count.to_le_bytes());
        out.extend_from_slice(&encode_record(&run[0], forms)?);
    }
    Ok(())
}

/// Whether two tensors have the same head.
#[inline]
fn are_alike(one: &Tensor, other: &Tensor) -> bool {
    one.data.len() == other.data.len()
        && one.dtype == other.dtype
        && one.is_dead == other.is_dead
        && one.shape == other.shape
}

/// A length of data with what fills it up.
#[inline]
pub fn filled_up(data_bytes: u64) -> u64 {
    data_bytes.saturating_add(DATA_ALIGNMENT_BYTES - 1) & !(DATA_ALIGNMENT_BYTES - 1)
}

/// Where the data of each tensor begins: at a multiple of so many bytes, as memory of an arena
/// does.
pub const DATA_ALIGNMENT_BYTES: u64 = 64;

/// Length of a run, in bytes.
pub const RUN_BYTES: usize = 4 + RECORD_BYTES;

#[cfg(test)]
mod tests {
    use std::iter::repeat_n;

    use proptest::prelude::*;

    use super::*;
    use crate::{DType, Shape};

    fn bytes(len: usize) -> Tensor {
        let shape = Shape::new(&[len as u64]).unwrap();
        Tensor::new(DType::UInt8, shape, vec![0; len]).unwrap()
    }

    #[test]
    fn tensors_that_are_alike_share_a_run() {
        let mut tensors = vec![
            bytes(5),
            bytes(5),
            bytes(64),
            bytes(65),
            Tensor::dead(),
            bytes(5),
        ];
        let mut out = Vec::new();
        encode_heads(&tensors, ShapeForms::Star, &mut out).unwrap();
        assert_eq!(out.len(), 5 * RUN_BYTES);
        assert_eq!(out[..4], [2, 0, 0, 0]);
        let heads = Heads::decode(&out, 6, ShapeForms::Star).unwrap();
        assert_eq!(heads.runs()[0], (2, tensors[0].meta()));
        assert_eq!(heads.data_bytes(), 64 + 64 + 64 + 128 + 64);
        tensors.truncate(1);
        assert_eq!(
            Heads::decode(&[], 0, ShapeForms::Star),
            Ok(Heads::default())
        );
    }

    #[test]
    fn another_number_of_tensors_is_refused() {
        let mut out = Vec::new();
        encode_heads(&[bytes(5), bytes(5), bytes(6)], ShapeForms::Star, &mut out).unwrap();
        assert_eq!(
            Heads::decode(&out, 4, ShapeForms::Star)
                .unwrap_err()
                .to_string(),
            "the heads of a response, byte 82: a run of tensors needs 41 bytes, 0 are left"
        );
        for wanted in [0, 1, 2] {
            let text = Heads::decode(&out, wanted, ShapeForms::Star)
                .unwrap_err()
                .to_string();
            assert!(text.contains("number of tensors"), "{text}");
        }
        out[0] = 0;
        assert!(
            Heads::decode(&out, 1, ShapeForms::Star).is_err(),
            "a run of none"
        );
        out[..4].fill(0xff);
        assert!(Heads::decode(&out, 3, ShapeForms::Star).is_err());
        assert!(Heads::decode(&out[..40], 3, ShapeForms::Star).is_err());
    }

    #[test]
    fn a_tensor_that_contradicts_itself_is_named() {
        let mut out = Vec::new();
        encode_heads(&[bytes(5), bytes(5), bytes(6)], ShapeForms::Star, &mut out).unwrap();
        out[RUN_BYTES + 4] = 7;
        assert_eq!(
            Heads::decode(&out, 3, ShapeForms::Star)
                .unwrap_err()
                .to_string(),
            "tensor 2: the dead flag is 7, allowed are 0 and 1"
        );
    }

    #[test]
    fn lengths_beyond_reason_saturate() {
        assert_eq!(filled_up(0), 0);
        assert_eq!(filled_up(1), 64);
        assert_eq!(filled_up(64), 64);
        assert!(filled_up(u64::MAX) > u64::MAX - 64);
    }

    proptest! {
        #[test]
        fn heads_come_back_as_they_were(lens in proptest::collection::vec(0usize..4, 0..40)) {
            let tensors: Vec<Tensor> = lens.iter().map(|&len| bytes(len * 40)).collect();
            let mut out = Vec::new();
            encode_heads(&tensors, ShapeForms::Star, &mut out).unwrap();
            let heads = Heads::decode(&out, tensors.len(), ShapeForms::Star).unwrap();
            let metas = (heads.runs().iter())
                .flat_map(|(count, meta)| repeat_n(meta.clone(), *count as usize));
            prop_assert!(metas.eq(tensors.iter().map(Tensor::meta)));
            let each = tensors.iter().map(|tensor| filled_up(tensor.data.len() as u64));
            prop_assert_eq!(heads.data_bytes(), each.sum::<u64>());
        }

        #[test]
        fn garbage_is_refused_or_has_the_wanted_number(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            wanted in 0usize..100,
        ) {
            if let Ok(heads) = Heads::decode(&bytes, wanted, ShapeForms::Star) {
                let counts = heads.runs().iter().map(|(count, _)| *count as usize);
                prop_assert_eq!(counts.sum::<usize>(), wanted);
                prop_assert!(heads.runs().len() * RUN_BYTES == bytes.len());
            }
        }
    }
}
