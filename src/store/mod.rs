//! The tensors that tasks keep in their stores, as their peers see them: listed, pulled and pushed
//! over star.

mod listing;
mod staged;
mod transfer;

pub use listing::{Listed, Stored, UnknownStored, list, list_all};
pub use transfer::{Remote, TransferLimits, Transferred, pull, push};
