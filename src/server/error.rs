//! Why a task did not start.

use std::io;
use std::net::SocketAddr;

use grpcxx_control::{BadAddress, ControlError, listen_advice};
use grpcxx_rpc::Status;
use grpcxx_runtime::EngineError;
use grpcxx_runtime::cluster::ClusterError;
use grpcxx_runtime::endpoint_map::EndpointMapError;

use crate::model::ModelError;

/// Why a task did not start; each text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The task is not part of the cluster.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The addresses of the tasks are not known.
    #[error(transparent)]
    EndpointMap(#[from] EndpointMapError),
    /// The task's own gRPC address cannot be used.
    #[error(transparent)]
    Address(#[from] BadAddress),
    /// The model cannot be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A tensor of the model cannot be served.
    #[error("the model cannot be served: {0}")]
    Store(Status),
    /// A task of the cluster cannot be called.
    #[error("a task of the cluster cannot be called: {0}")]
    Peer(Status),
    /// The options contradict each other.
    #[error("{0}")]
    Contradiction(String),
    /// The engine did not start.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine did not start because its port cannot be had.
    #[error(
        "the star port {address} cannot be listened on: {}; it comes from the endpoint map, or else \
         from GRPCXX_STAR_PORT_OFFSET ({cause})",
        listen_advice(*address, cause)
    )]
    StarPort {
        /// Where it should have listened.
        address: SocketAddr,
        /// What the system said.
        cause: io::Error,
    },
    /// The gRPC endpoint did not start.
    #[error(transparent)]
    Control(#[from] ControlError),
}

impl ServerError {
    /// What the system said, if it refused a file, a port or a thread.
    pub fn system_error(&self) -> Option<&io::Error> {
        match self {
            Self::Model(ModelError::Io { cause, .. }) => Some(cause),
            Self::Engine(error) => error.system_error(),
            Self::StarPort { cause, .. } => Some(cause),
            Self::Control(error) => Some(error.cause()),
            Self::Cluster(_)
            | Self::EndpointMap(_)
            | Self::Address(_)
            | Self::Model(_)
            | Self::Store(_)
            | Self::Peer(_)
            | Self::Contradiction(_) => None,
        }
    }
}

/// A port that cannot be had is the usual reason, and the endpoint map says where to change it.
pub(super) fn explain(error: EngineError, listen: Option<SocketAddr>) -> ServerError {
    match (listen, error.listen_error()) {
        (Some(address), Some(cause)) => ServerError::StarPort { address, cause },
        (None, _) | (_, None) => ServerError::Engine(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_port_says_what_its_cause_asks_for() {
        for (port, cause, advice) in [
            (
                800,
                io::ErrorKind::PermissionDenied,
                "grant CAP_NET_BIND_SERVICE",
            ),
            (8000, io::ErrorKind::PermissionDenied, "security module"),
            (8000, io::ErrorKind::AddrInUse, "sport = :8000"),
        ] {
            let error = ServerError::StarPort {
                address: SocketAddr::from(([127, 0, 0, 1], port)),
                cause: cause.into(),
            };
            let text = error.to_string();
            assert!(
                text.contains(advice) && text.contains("endpoint map"),
                "{text}"
            );
        }
    }
}
