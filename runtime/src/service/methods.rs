//! Services as they are registered: their methods by name, and where each runs.

use std::future::Future;
use std::sync::Arc;

use futures_util::Stream;
use grpcxx_rpc::Status;
use prost::Message;

use super::exchange::{Request, Response};
use super::interceptor::Interceptor;
use super::method::{LocalAnswer, PoolAnswer, Typed, Unary};
use super::stream::{ClientStream, ServerStream, Streaming, Streams, TwoStreams};

/// A service that `grpcxx-build` made out of a .proto file and a program has implemented.
pub trait TypedService {
    /// The name, with its package.
    const NAME: &'static str;

    /// The methods, and what describes them.
    fn into_methods(self) -> Methods;
}

/// Where the code of a service runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// On the shard that took the call in, which costs no hop to another thread. The code must not
    /// block; the log names one that holds the shard for longer than
    /// [`EngineOptions::shard_held_max`](crate::EngineOptions::shard_held_max).
    #[default]
    Shard,
    /// On threads of the compute pool, where it may take its time. It holds one of them while it
    /// runs, and none while it awaits something.
    ComputePool,
}

/// The methods of a service, by name.
pub struct Methods {
    pub(crate) service: &'static str,
    pub(crate) descriptors: &'static [u8],
    pub(crate) place: Place,
    pub(crate) interceptor: Interceptor,
    pub(crate) methods: Vec<(&'static str, MethodCode)>,
}

/// The methods of a service whose futures and streams stay on the thread that made them, and so on
/// the shards.
pub struct LocalMethods(Methods);

impl Methods {
    /// No methods yet of the service with this name. `descriptors` is a serialized
    /// `FileDescriptorSet` that describes it.
    pub fn new(service: &'static str, descriptors: &'static [u8], place: Place) -> Self {
        Self {
            service,
            descriptors,
            place,
            interceptor: Interceptor::default(),
            methods: Vec::new(),
        }
    }

    /// Lets this code see each request before its method does.
    #[must_use]
    pub fn with_interceptor(self, interceptor: Interceptor) -> Self {
        Self {
            interceptor,
            ..self
        }
    }

    /// Adds a method that takes one message and answers with one.
    #[must_use]
    pub fn unary<M, R, F, T>(self, name: &'static str, method: F) -> Self
    where
        M: Message + Default + 'static,
        R: Message + 'static,
        F: Fn(Request<M>) -> T + Send + Sync + 'static,
        T: Future<Output = Result<Response<R>, Status>> + Send + 'static,
    {
        self.add_unary(name, Arc::new(Typed::new(method)))
    }

    /// Adds a method that takes one message and answers with any number.
    #[must_use]
    pub fn server_stream<M, R, F, T, S>(self, name: &'static str, method: F) -> Self
    where
        M: Message + Default + 'static,
        R: Message + 'static,
        F: Fn(Request<M>) -> T + Send + Sync + 'static,
        T: Future<Output = Result<Response<S>, Status>> + Send + 'static,
        S: Stream<Item = Result<R, Status>> + Send + 'static,
    {
        self.add_streams(name, Arc::new(ServerStream::new(method)))
    }

    /// Adds a method that takes any number of messages and answers with one.
    #[must_use]
    pub fn client_stream<M, R, F, T>(self, name: &'static str, method: F) -> Self
    where
        M: Message + Default + 'static,
        R: Message + 'static,
        F: Fn(Request<Streaming<M>>) -> T + Send + Sync + 'static,
        T: Future<Output = Result<Response<R>, Status>> + Send + 'static,
    {
        self.add_streams(name, Arc::new(ClientStream::new(method)))
    }

    /// Adds a method that takes any number of messages and answers with any number.
    #[must_use]
    pub fn two_streams<M, R, F, T, S>(self, name: &'static str, method: F) -> Self
    where
        M: Message + Default + 'static,
        R: Message + 'static,
        F: Fn(Request<Streaming<M>>) -> T + Send + Sync + 'static,
        T: Future<Output = Result<Response<S>, Status>> + Send + 'static,
        S: Stream<Item = Result<R, Status>> + Send + 'static,
    {
        self.add_streams(name, Arc::new(TwoStreams::new(method)))
    }

    fn add_unary<U>(mut self, name: &'static str, method: Arc<U>) -> Self
    where
        U: Unary<LocalAnswer> + Unary<PoolAnswer> + 'static,
    {
        let code = match self.place {
            Place::Shard => MethodCode::OnShard(Implementation::Unary(method)),
            Place::ComputePool => MethodCode::OnPool(Implementation::Unary(method)),
        };
        self.methods.push((name, code));
        self
    }

    fn add_streams<U>(mut self, name: &'static str, method: Arc<U>) -> Self
    where
        U: Streams<LocalAnswer> + Streams<PoolAnswer> + 'static,
    {
        let code = match self.place {
            Place::Shard => MethodCode::OnShard(Implementation::Streams(method)),
            Place::ComputePool => MethodCode::OnPool(Implementation::Streams(method)),
        };
        self.methods.push((name, code));
        self
    }
}

impl LocalMethods {
    /// No methods yet of the service with this name, as for [`Methods::new`].
    pub fn new(service: &'static str, descriptors: &'static [u8]) -> Self {
        Self(Methods::new(service, descriptors, Place::Shard))
    }

    /// Lets this code see each request before its method does.
    #[must_use]
    pub fn with_interceptor(self, interceptor: Interceptor) -> Self {
        Self(self.0.with_interceptor(interceptor))
    }

    /// Adds a method that takes one message and answers with one.
    #[must_use]
    pub fn unary<M, R, F, T>(self, name: &'static str, method: F) -> Self
    where
        M: Message + Default + 'static,
        R: Message + 'static,
        F: Fn(Request<M>) -> T + Send + Sync + 'static,
        T: Future<Output = Result<Response<R>, Status>> + 'static,
    {
        self.add_unary(name, Arc::new(Typed::new(method)))
    }

    /// Adds a method that takes one message and answers with any number.
    #[must_use]
    pub fn server_stream<M, R, F, T, S>(self, name: &'static str, method: F) -> Self
    where
        M: Message + Default + 'static,
        R: Message + 'static,
        F: Fn(Request<M>) -> T + Send + Sync + 'static,
        T: Future<Output = Result<Response<S>, Status>> + 'static,
        S: Stream<Item = Result<R, Status>> + 'static,
    {
        self.add_streams(name, Arc::new(ServerStream::new(method)))
    }

    /// Adds a method that takes any number of messages and answers with one.
    #[must_use]
    pub fn client_stream<M, R, F, T>(self, name: &'static str, method: F) -> Self
    where
        M: Message + Default + 'static,
        R: Message + 'static,
        F: Fn(Request<Streaming<M>>) -> T + Send + Sync + 'static,
        T: Future<Output = Result<Response<R>, Status>> + 'static,
    {
        self.add_streams(name, Arc::new(ClientStream::new(method)))
    }

    /// Adds a method that takes any number of messages and answers with any number.
    #[must_use]
    pub fn two_streams<M, R, F, T, S>(self, name: &'static str, method: F) -> Self
    where
        M: Message + Default + 'static,
        R: Message + 'static,
        F: Fn(Request<Streaming<M>>) -> T + Send + Sync + 'static,
        T: Future<Output = Result<Response<S>, Status>> + 'static,
        S: Stream<Item = Result<R, Status>> + 'static,
    {
        self.add_streams(name, Arc::new(TwoStreams::new(method)))
    }

    fn add_unary(mut self, name: &'static str, method: Arc<dyn Unary<LocalAnswer>>) -> Self {
        let code = MethodCode::OnShard(Implementation::Unary(method));
        self.0.methods.push((name, code));
        self
    }

    fn add_streams(mut self, name: &'static str, method: Arc<dyn Streams<LocalAnswer>>) -> Self {
        let code = MethodCode::OnShard(Implementation::Streams(method));
        self.0.methods.push((name, code));
        self
    }
}

impl From<LocalMethods> for Methods {
    fn from(local: LocalMethods) -> Self {
        local.0
    }
}

/// The code of a method, and so where it runs.
#[derive(Clone)]
pub(crate) enum MethodCode {
    OnShard(Implementation<LocalAnswer>),
    OnPool(Implementation<PoolAnswer>),
}

/// The code of a method whose answer is such a future.
pub(crate) enum Implementation<A> {
    Unary(Arc<dyn Unary<A>>),
    Streams(Arc<dyn Streams<A>>),
}

impl<A> Clone for Implementation<A> {
    fn clone(&self) -> Self {
        match self {
            Self::Unary(method) => Self::Unary(Arc::clone(method)),
            Self::Streams(method) => Self::Streams(Arc::clone(method)),
        }
    }
}
