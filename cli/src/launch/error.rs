use std::io;
use std::time::Duration;

use grpcxx_runtime::cluster::ClusterError;

/// Why the processes of a job do not find each other.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// A launcher sets several variables together, and not all are there.
    #[error(
        "{launcher} sets {set} and {missing} together, but only {set} is set; unset it, or start this from the launcher"
    )]
    Half {
        /// The launcher.
        launcher: &'static str,
        /// The variable that is there.
        set: &'static str,
        /// The one that is not.
        missing: &'static str,
    },
    /// A variable has a value that it cannot have.
    #[error("the variable {name} is {value:?}; write {allowed}")]
    Value {
        /// The variable.
        name: &'static str,
        /// What was found.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// Two things that were said do not fit together.
    #[error("{0}")]
    Contradiction(String),
    /// Nobody says where rank 0 is.
    #[error(
        "{launcher} does not say where rank 0 runs{reason}; give its host and a free port there with --rendezvous HOST:PORT"
    )]
    NoLeader {
        /// The launcher.
        launcher: &'static str,
        /// Why not.
        reason: &'static str,
    },
    /// `TF_CONFIG` cannot be read.
    #[error("the variable TF_CONFIG is wrong: {0}")]
    TfConfig(ClusterError),
    /// Some ranks did not come.
    #[error("{missing} of {size} did not come to the rendezvous at {address} within {} s", waited.as_secs())]
    Missing {
        /// `rank 3`, or `ranks 3, 5-7`.
        missing: String,
        /// How many there should be.
        size: u32,
        /// Where they were awaited.
        address: String,
        /// For how long.
        waited: Duration,
    },
    /// Rank 0 did not answer.
    #[error("rank {rank} found no rendezvous at {address} within {} s: {reason}", waited.as_secs())]
    NoRendezvous {
        /// The own rank.
        rank: u32,
        /// Where rank 0 should be.
        address: String,
        /// For how long it was tried.
        waited: Duration,
        /// What happened last.
        reason: String,
    },
    /// Rank 0 had heard this rank.
    #[error("rank 0 at {address} hung up before all ranks were there")]
    Lost {
        /// Where it was.
        address: String,
    },
    /// Rank 0 answered that this rank is wrong there, or that others did not come.
    #[error("the rendezvous at {address} says: {reason}")]
    Refused {
        /// Where rank 0 is.
        address: String,
        /// Its words.
        reason: String,
    },
    /// The system refused a step.
    #[error("cannot {action}: {cause}")]
    System {
        /// What was attempted.
        action: String,
        /// The reason of the operating system.
        cause: io::Error,
    },
}

impl LaunchError {
    pub(super) fn system(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |cause| Self::System { action, cause }
    }
}
