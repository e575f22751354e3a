//! Errors of this crate as statuses, so that `?` works in functions.

use grpcxx_rpc::{Code, Status};

use crate::cluster::ClusterError;
use crate::config::ConfigError;
use crate::endpoint_map::EndpointMapError;
use crate::engine::EngineError;
use crate::host::HostError;
use crate::placement::PlacementError;

macro_rules! statuses {
    ($($error:ty => $code:ident,)*) => {
        $(
            impl From<$error> for Status {
                fn from(error: $error) -> Self {
                    Self::new(Code::$code, error.to_string())
                }
            }
        )*
    };
}

statuses! {
    ClusterError => InvalidArgument,
    ConfigError => InvalidArgument,
    EndpointMapError => InvalidArgument,
    EngineError => FailedPrecondition,
    HostError => Internal,
    PlacementError => FailedPrecondition,
}
