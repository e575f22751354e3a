//! A message with what travels beside it, as methods take and return it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use grpcxx_rpc::Metadata;

/// A message to a method.
#[derive(Clone, Debug, Default)]
pub struct Request<T> {
    message: T,
    metadata: Metadata,
    timeout: Option<Duration>,
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
        }
    }

    /// Bounds the call, the wait for a connection included. The server hears of it.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = Some(timeout);
    }

    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout
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
