//! Code that sees each request before a method, or a peer, does.

use std::fmt;
use std::sync::Arc;

use grpcxx_rpc::Status;

use super::exchange::Request;

/// Code that sees each request of a service before its method does, or each request of a client
/// before it leaves: what travels beside the message, without that. It returns the request, changed
/// or not, or a status with which the call ends. It runs where the method runs, or on the thread
/// that makes the call.
///
/// ```
/// use grpcxx_runtime::service::{Interceptor, Request, Status};
///
/// let interceptor = Interceptor::new(|request: Request<()>| {
///     match request.metadata().get("authorization") {
///         Some("Bearer secret") => Ok(request),
///         _ => Err(Status::unauthenticated("say who you are: authorization is Bearer ...")),
///     }
/// });
/// assert!(interceptor.intercept(Request::new(())).is_err());
/// ```
#[derive(Clone, Default)]
pub struct Interceptor(Option<Arc<Code>>);

type Code = dyn Fn(Request<()>) -> Result<Request<()>, Status> + Send + Sync;

impl Interceptor {
    /// Calls this code. The default calls none.
    pub fn new(
        code: impl Fn(Request<()>) -> Result<Request<()>, Status> + Send + Sync + 'static,
    ) -> Self {
        Self(Some(Arc::new(code)))
    }

    /// Calls this code with what the code before has let through.
    #[must_use]
    pub fn then(
        self,
        code: impl Fn(Request<()>) -> Result<Request<()>, Status> + Send + Sync + 'static,
    ) -> Self {
        match self.0 {
            Some(first) => Self::new(move |request| code(first(request)?)),
            None => Self::new(code),
        }
    }

    /// Lets the code see a request.
    ///
    /// # Errors
    /// The status with which the call ends.
    pub fn intercept(&self, request: Request<()>) -> Result<Request<()>, Status> {
        match &self.0 {
            Some(code) => code(request),
            None => Ok(request),
        }
    }

    /// Lets the code see what a request has beside its message.
    pub(super) fn intercept_whole<T>(&self, request: Request<T>) -> Result<Request<T>, Status> {
        if self.0.is_none() {
            return Ok(request);
        }
        let (request, message) = request.replace(());
        Ok(self.intercept(request)?.replace(message).0)
    }
}

impl fmt::Debug for Interceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_there = &self.0.is_some();
        f.debug_tuple("Interceptor").field(is_there).finish()
    }
}
