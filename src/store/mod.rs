//! The tensors that tasks keep in their stores, as their peers see them: listed, pulled and pushed
//! over star.

mod listing;
mod staged;
mod transfer;

pub use listing::{Stored, list};
pub use transfer::{Remote, TransferLimits, Transferred, pull, push};
