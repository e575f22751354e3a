//! Calls that are refused: their requests are taken before they are answered.
//!
//! The stream of a call that is answered while its request is on the way is reset, and some clients
//! then show the reset to their user and not the answer.

use std::pin::pin;
use std::sync::Arc;

use http::Response;
use http_body_util::BodyExt;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::body::Body;

use crate::limits::{REFUSALS_MAX, REFUSED_REQUEST_BYTES, REFUSED_REQUEST_TIMEOUT};
use crate::status::to_grpc;

/// The refused calls whose request is awaited.
#[derive(Clone, Debug)]
pub(crate) struct Refusals {
    places: Arc<Semaphore>,
}

impl Refusals {
    pub(crate) fn new() -> Self {
        Self {
            places: Arc::new(Semaphore::new(REFUSALS_MAX)),
        }
    }

    /// The answer to a call that is refused, once its request has come or that takes too long.
    pub(crate) async fn answer(self, refused: grpcxx_rpc::Status, request: Body) -> Response<Body> {
        if let Ok(_place) = self.places.try_acquire() {
            // If it takes too long, the peer sees that its stream is reset.
            let _ = timeout(REFUSED_REQUEST_TIMEOUT, take(request)).await;
        }
        to_grpc(&refused).into_http()
    }
}

/// Takes a request and forgets it, up to a limit.
async fn take(request: Body) {
    let mut request = pin!(request);
    let mut taken_bytes = 0;
    while let Some(Ok(frame)) = request.frame().await {
        taken_bytes += frame.data_ref().map_or(0, bytes::Bytes::len);
        if taken_bytes > REFUSED_REQUEST_BYTES {
            return;
        }
    }
}
