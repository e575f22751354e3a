//! Tensors on their way from a step to a caller.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use grpcxx_rpc::Tensor;

/// Tensors that were taken out of a step, which hands each out once. They go back into it if this
/// is dropped before they have begun to leave.
pub struct TakenTensors {
    tensors: Vec<Tensor>,
    give_back: Option<GiveBack>,
    leave: AtomicBool,
}

type GiveBack = Box<dyn FnOnce(Vec<Tensor>) + Send + Sync>;

impl TakenTensors {
    /// These tensors, which `give_back` puts back into their step.
    pub fn new(
        tensors: Vec<Tensor>,
        give_back: impl FnOnce(Vec<Tensor>) + Send + Sync + 'static,
    ) -> Self {
        Self {
            tensors,
            give_back: Some(Box::new(give_back)),
            leave: AtomicBool::new(false),
        }
    }

    pub(crate) fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// They begin to leave: what becomes of them now, nobody here knows.
    pub(crate) fn leave(&self) {
        self.leave.store(true, Ordering::Relaxed);
    }
}

impl Drop for TakenTensors {
    fn drop(&mut self) {
        if let Some(give_back) = self.give_back.take()
            && !*self.leave.get_mut()
        {
            give_back(std::mem::take(&mut self.tensors));
        }
    }
}

impl fmt::Debug for TakenTensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TakenTensors({})", self.tensors.len())
    }
}
