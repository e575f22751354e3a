//! The record that was written or read last, since the next is often the same.

use super::record::{RECORD_BYTES, RecordError, ShapeForms, decode_record, encode_record};
use crate::{Status, Tensor, TensorMeta};

/// The head of the last record, and what it says.
#[derive(Debug, Default)]
pub(crate) struct RecordCache {
    last: Option<([u8; RECORD_BYTES], TensorMeta)>,
}

impl RecordCache {
    /// Reads the head of a record, as [`decode_record`] does. All heads of a cache come in the same
    /// forms, or later ones in more.
    ///
    /// # Errors
    /// The record breaks the protocol.
    #[inline]
    pub(crate) fn decode(
        &mut self,
        head: &[u8; RECORD_BYTES],
        forms: ShapeForms,
    ) -> Result<TensorMeta, RecordError> {
        if let Some((last, meta)) = &self.last
            && last == head
        {
            return Ok(meta.clone());
        }
        let meta = decode_record(head, forms)?;
        self.last = Some((*head, meta.clone()));
        Ok(meta)
    }

    /// The head of the record of a tensor, as [`encode_record`] makes it.
    ///
    /// # Errors
    /// The tensor has no record in these forms.
    #[inline]
    pub(crate) fn encode(
        &mut self,
        tensor: &Tensor,
        forms: ShapeForms,
    ) -> Result<[u8; RECORD_BYTES], Status> {
        if let Some((last, meta)) = &self.last
            && meta.is_of(tensor)
        {
            return Ok(*last);
        }
        let head = encode_record(tensor, forms)?;
        self.last = Some((head, tensor.meta()));
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_those_of_a_codec_that_remembers_nothing() {
        let (mut writer, mut reader) = (RecordCache::default(), RecordCache::default());
        let tensors = [
            Tensor::scalar(1_i32),
            Tensor::scalar(2_i32),
            Tensor::scalar(2_u32),
            Tensor::dead(),
            Tensor::vector(vec![1_i32]),
            Tensor::scalar(3_i32),
        ];
        for tensor in &tensors {
            let head = writer.encode(tensor, ShapeForms::Star).unwrap();
            assert_eq!(head, encode_record(tensor, ShapeForms::Star).unwrap());
            assert_eq!(reader.decode(&head, ShapeForms::Star), Ok(tensor.meta()));
        }
        assert!(reader.decode(&[9; RECORD_BYTES], ShapeForms::Star).is_err());
    }
}
