use crate::{Tensor, Text};

/// A tensor that was taken out of its step, with its key. Both lie where they were, so that they move once; what nobody
/// takes from there is dropped.
#[derive(Debug)]
pub struct TakenTensor<'a> {
    key: &'a mut Text,
    /// There until it is taken.
    tensor: &'a mut Option<Tensor>,
}

impl<'a> TakenTensor<'a> {
    /// What lies there, if it is a tensor.
    #[inline]
    pub fn new(key: &'a mut Text, tensor: &'a mut Option<Tensor>) -> Option<Self> {
        tensor.is_some().then_some(Self { key, tensor })
    }

    /// The tensor.
    #[inline]
    pub fn tensor(&self) -> &Tensor {
        self.tensor.as_ref().expect(IS_THERE)
    }

    /// The key and the tensor.
    #[inline]
    pub fn take(self) -> (Text, Tensor) {
        let tensor = self.tensor.take().expect(IS_THERE);
        (std::mem::take(self.key), tensor)
    }
}

impl Drop for TakenTensor<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.tensor.is_some() {
            *self.tensor = None;
            *self.key = Text::default();
        }
    }
}

const IS_THERE: &str = "a tensor is there until it is taken";
