//! Which small tensors travel together.

use grpcxx_memory::BufferMut;
use grpcxx_rpc::{Shape, Status, Tensor};

/// Tensors by their places, in the groups that travel together.
#[derive(Debug)]
pub(crate) struct Buckets(Vec<Vec<usize>>);

impl Buckets {
    /// Puts tensors of the same type together, in their order, up to a limit. All ranks that bring
    /// the same types and shapes get the same buckets.
    pub(crate) fn of(tensors: &[Tensor]) -> Self {
        let mut buckets: Vec<Vec<usize>> = Vec::new();
        // Of each type the bucket that is not full, and the bytes in it.
        let mut open: Vec<(grpcxx_rpc::DType, usize, usize)> = Vec::new();
        for (index, tensor) in tensors.iter().enumerate() {
            let bytes = tensor.data.len();
            let known = open.iter_mut().find(|(dtype, ..)| *dtype == tensor.dtype);
            match known {
                Some((_, bucket, filled)) if *filled + bytes <= BUCKET_BYTES => {
                    buckets[*bucket].push(index);
                    *filled += bytes;
                }
                // A long one gets in nobody's way.
                _ if bytes > BUCKET_BYTES => buckets.push(vec![index]),
                Some(known) => {
                    *known = (tensor.dtype, buckets.len(), bytes);
                    buckets.push(vec![index]);
                }
                None => {
                    open.push((tensor.dtype, buckets.len(), bytes));
                    buckets.push(vec![index]);
                }
            }
        }
        Self(buckets)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[usize]> {
        self.0.iter().map(Vec::as_slice)
    }
}

/// The tensors of a bucket as one, with a copy unless it is alone.
pub(crate) fn packed(tensors: &[Tensor], bucket: &[usize]) -> Result<Tensor, Status> {
    if let [index] = bucket {
        let tensor = &tensors[*index];
        let shape = Shape::new(&[tensor.shape.num_elements()])?;
        return Tensor::new(tensor.dtype, shape, tensor.data.clone());
    }
    let bytes = bucket.iter().map(|&index| tensors[index].data.len()).sum();
    let mut data = BufferMut::zeroed(bytes);
    let (mut start, mut elements) = (0, 0);
    for &index in bucket {
        let tensor = &tensors[index];
        let end = start + tensor.data.len();
        data[start..end].copy_from_slice(&tensor.data);
        start = end;
        elements += tensor.shape.num_elements();
    }
    let dtype = tensors[bucket[0]].dtype;
    Tensor::new(dtype, Shape::new(&[elements])?, data.freeze())
}

/// Most bytes of tensors that travel together.
const BUCKET_BYTES: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_of_a_type_share_a_bucket_until_it_is_full() {
        let short = |value: f32| Tensor::scalar(value);
        let long = || Tensor::vector(vec![0u8; BUCKET_BYTES - 1]);
        let tensors = [short(1.0), long(), short(2.0), Tensor::scalar(3u8), long()];
        let buckets = Buckets::of(&tensors);
        let found: Vec<&[usize]> = buckets.iter().collect();
        assert_eq!(found, [&[0, 2][..], &[1, 3], &[4]]);
        let pack = packed(&tensors, &[0, 2]).unwrap();
        assert_eq!(pack.as_slice::<f32>().unwrap(), [1.0, 2.0]);
    }
}
