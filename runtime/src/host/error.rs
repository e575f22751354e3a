//! Why a host did not start, or ended early.

use std::any::Any;

use grpcxx_transport::TransportError;

use crate::blame::panic_text;
use crate::placement::PlacementError;

/// Why a host did not start, or ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// The system gave no thread.
    #[error("cannot start thread `{name}`: {message}; raise the limit of threads (`ulimit -u`)")]
    Thread {
        /// Name of the thread.
        name: String,
        /// The system's words.
        message: String,
    },
    /// The thread could not be pinned.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// glommio did not start.
    #[error("the glommio host did not start: {0}; GRPCXX_HOST=native runs without it")]
    Glommio(String),
    /// The shard could not be made.
    #[error("shard `{name}` did not start: {reason}")]
    Shard {
        /// Name of the thread.
        name: String,
        /// Why not.
        reason: ShardError,
    },
    /// Code on the shard's thread panicked.
    #[error("shard `{name}` panicked in {code}: {message}")]
    Panicked {
        /// Name of the thread.
        name: String,
        /// Whose code it was.
        code: &'static str,
        /// The panic's words.
        message: String,
    },
}

/// Why a shard could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardError {
    /// It cannot listen at its address.
    #[error(transparent)]
    Listen(TransportError),
    /// There is no memory, no driver, or no device for it.
    #[error("{0}")]
    Other(String),
}

impl From<String> for ShardError {
    fn from(message: String) -> Self {
        Self::Other(message)
    }
}

pub(super) fn panicked(name: String, code: &'static str, payload: &(dyn Any + Send)) -> HostError {
    HostError::Panicked {
        name,
        code,
        message: panic_text(payload).to_owned(),
    }
}
