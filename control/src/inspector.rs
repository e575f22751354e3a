//! The service that tells what a task waits for.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::Backend;
use crate::services::inspect::inspector_server::Inspector as Service;
use crate::services::inspect::{InspectReply, InspectRequest};
use crate::status::to_grpc;

/// Tells what the task waits for.
pub(crate) struct Inspector {
    pub(crate) backend: Arc<dyn Backend>,
}

#[tonic::async_trait]
impl Service for Inspector {
    async fn inspect(&self, _: Request<InspectRequest>) -> Result<Response<InspectReply>, Status> {
        let told = self.backend.inspect().await;
        told.map(Response::new).map_err(|status| to_grpc(&status))
    }
}
