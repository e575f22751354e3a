//! A message with what travels beside it, as methods take and return it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use grpcxx_rpc::Metadata;

use super::extensions::Extensions;
use crate::caller::Caller;

/// A message to a method.
///
/// ```
/// use std::time::Duration;
/// use grpcxx_runtime::service::Request;
///
/// let mut request = Request::new("message");
/// request.metadata_mut().insert("user", "me")?;
/// request.set_timeout(Duration::from_secs(1));
/// request.extensions_mut().insert(7u32);
/// assert_eq!(request.timeout(), Some(Duration::from_secs(1)));
/// assert_eq!(request.extensions().get(), Some(&7u32));
/// assert_eq!(request.remote_addr(), None, "nobody has sent it");
/// # Ok::<(), grpcxx_rpc::Status>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Request<T> {
    message: T,
    metadata: Metadata,
    timeout: Option<Duration>,
    deadline: Option<Instant>,
    remote_addr: Option<SocketAddr>,
    extensions: Extensions,
}

/// A message that a method answers with.
#[derive(Clone, Debug, Default)]
pub struct Response<T> {
    message: T,
    metadata: Metadata,
    trailers: Option<Trailers>,
}

/// What a method says behind its last message, to be set before that.
#[derive(Clone, Debug, Default)]
pub struct Trailers(Arc<Mutex<Metadata>>);

impl Trailers {
    /// Says this in place of what was set before.
    pub fn set(&self, metadata: Metadata) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = metadata;
    }

    pub(crate) fn take(&self) -> Metadata {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T> Request<T> {
    /// A request without metadata that may take as long as its client allows.
    pub fn new(message: T) -> Self {
        Self::with_metadata(message, Metadata::default())
    }

    pub(crate) fn with_metadata(message: T, metadata: Metadata) -> Self {
        Self {
            message,
            metadata,
            timeout: None,
            deadline: None,
            remote_addr: None,
            extensions: Extensions::default(),
        }
    }

    /// What `caller` says.
    pub(crate) fn from_caller(message: T, metadata: Metadata, caller: &Caller) -> Self {
        Self {
            deadline: caller.deadline,
            remote_addr: caller.address,
            ..Self::with_metadata(message, metadata)
        }
    }

    /// The same with another message, and the message.
    pub(crate) fn replace<M>(self, message: M) -> (Request<M>, T) {
        let request = Request {
            message,
            metadata: self.metadata,
            timeout: self.timeout,
            deadline: self.deadline,
            remote_addr: self.remote_addr,
            extensions: self.extensions,
        };
        (request, self.message)
    }

    /// The same with what `change` makes of the message.
    pub fn map<M>(self, change: impl FnOnce(T) -> M) -> Request<M> {
        let (request, message) = self.replace(());
        request.replace(change(message)).0
    }

    /// Bounds the call, the wait for a connection included. The server hears of it.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = Some(timeout);
    }

    /// How long the call may take: what [`set_timeout`](Self::set_timeout) was given, or else what
    /// is left until the [`deadline`](Self::deadline).
    pub fn timeout(&self) -> Option<Duration> {
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        self.timeout.or_else(|| self.deadline.map(left))
    }

    /// How long a call with it may take to a task whose calls may take `usual`. What is left for
    /// who sends a request on is no reason to wait longer than for requests of its own.
    pub(super) fn bound(&self, usual: Option<Duration>) -> Option<Duration> {
        if self.timeout.is_some() {
            return self.timeout;
        }
        [self.timeout(), usual].into_iter().flatten().min()
    }

    /// In a method: when its client no longer wants the answer, if the client has bounded the call.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// In a method: the address of the client's end of the connection. `None` for a call from this
    /// process, and for one from anywhere that came as a graph call, so it proves nothing.
    pub fn remote_addr(&self) -> Option<SocketAddr> {
        self.remote_addr
    }

    /// Values by their types that stay in this process, for interceptors and methods.
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    /// Those values, to be changed.
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        &mut self.extensions
    }

    /// The message.
    pub fn get_ref(&self) -> &T {
        &self.message
    }

    /// The message, to be changed.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.message
    }

    /// The message alone.
    pub fn into_inner(self) -> T {
        self.message
    }

    /// What travels beside the message.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// What travels beside the message, to be changed.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }
}

impl<T> Response<T> {
    /// An answer without metadata.
    pub fn new(message: T) -> Self {
        Self::with_metadata(message, Metadata::default())
    }

    pub(crate) fn with_metadata(message: T, metadata: Metadata) -> Self {
        Self {
            message,
            metadata,
            trailers: None,
        }
    }

    /// With what goes behind the last message, which the code that makes the messages sets through
    /// a clone. Where a method answers with one message, it goes with the metadata.
    #[must_use]
    pub fn with_trailers(self, trailers: Trailers) -> Self {
        Self {
            trailers: Some(trailers),
            ..self
        }
    }

    /// All parts: message, metadata, trailers.
    pub(crate) fn into_parts(self) -> (T, Metadata, Option<Trailers>) {
        (self.message, self.metadata, self.trailers)
    }

    /// The message.
    pub fn get_ref(&self) -> &T {
        &self.message
    }

    /// The message, to be changed.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.message
    }

    /// The message alone.
    pub fn into_inner(self) -> T {
        self.message
    }

    /// What travels beside the message.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// What travels beside the message, to be changed.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }
}

impl<T> From<T> for Response<T> {
    fn from(message: T) -> Self {
        Self::new(message)
    }
}
