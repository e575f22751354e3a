//! Another task, as a program calls it: one typed method for each kind of call.

use std::future::Future;
use std::time::Duration;

use grpcxx_memory::Buffer;
use grpcxx_rpc::{
    Code, Envelope, Fetched, GraphCall, KeyList, Method, Request, Response, Status, Tensor, Text,
    proto,
};
use prost::Message;

use crate::call::{Call, CallSpec};
use crate::client::{Client, Peer};
use crate::registry::{STORE_PULL, STORE_PUSH};
use crate::service::{StreamEnds, take_envelope};
use crate::shard::ShardContext;

/// A task that an engine calls: a peer, and how long each call may take. Cheap to clone, and usable
/// from any thread.
///
/// Each method begins its call at once and returns a [`Call`], which is a future of the result;
/// [`Call::wait`] blocks a thread in its place.
///
/// ```
/// use grpcxx_runtime::Engine;
/// use grpcxx_rpc::{GraphCall, Tensor};
///
/// let server = Engine::builder().listen("127.0.0.1:0").start()?;
/// server.register_fn("double", |call: GraphCall| {
///     let value: f32 = call.feed("x")?.value()?;
///     Ok([("y", Tensor::scalar(2.0 * value))])
/// });
///
/// let caller = Engine::builder().start()?;
/// let remote = caller.connect(&server.local_addr().unwrap().to_string())?;
/// let call = GraphCall::new("double").with_feed("x", Tensor::scalar(1.5f32)).with_fetch("y");
/// let results = remote.run(call).wait()?;
/// assert_eq!(results.get("y")?.value::<f32>()?, 3.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Remote {
    client: Client,
    peer: Peer,
    timeout: Option<Duration>,
}

impl Remote {
    /// The task that this peer is. [`Engine::connect`](crate::Engine::connect) is the same for an
    /// address; this is for one of several connections.
    ///
    /// ```
    /// use grpcxx_runtime::{Engine, Remote};
    ///
    /// let engine = Engine::builder().start()?;
    /// let peer = engine.client().peer_over("127.0.0.1:7000", 1)?;
    /// let second = Remote::new(engine.client(), peer);
    /// assert_eq!(second.address(), "127.0.0.1:7000");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(client: Client, peer: Peer) -> Self {
        Self {
            client,
            peer,
            timeout: None,
        }
    }

    /// Bounds each call made from here on, the wait for a connection included. Without it a call
    /// waits as long as the connection lives.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self {
            timeout: Some(timeout),
            ..self
        }
    }

    /// How long each call may take that says nothing else.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// The address as it was given, `host:port`.
    pub fn address(&self) -> &str {
        self.peer.address()
    }

    /// The peer, for calls through a [`Client`] or a shard.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Blocks the calling thread until a future is ready that waits for calls of this task. The
    /// thread carries those calls on meanwhile, so that it needs no other thread for that. Not for
    /// use on a shard.
    ///
    /// ```
    /// use futures_util::future::join_all;
    /// use grpcxx_rpc::Tensor;
    /// use grpcxx_runtime::Engine;
    ///
    /// let server = Engine::builder().listen("127.0.0.1:0").start()?;
    /// server.store_put(vec![("x".into(), Tensor::scalar(1.5f32))])?;
    /// let engine = Engine::builder().start()?;
    /// let remote = engine.connect(&server.local_addr().unwrap().to_string())?;
    /// let pulls = (0..16).map(|_| remote.pull(["x"]));
    /// let pulled = remote.block_on(join_all(pulls));
    /// assert!(pulled.iter().all(Result::is_ok));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let output = self.client.wait(self.peer.shard(), future, None);
        output.expect("a wait without a limit ends with the future")
    }

    /// Runs a function of the task. The result holds the tensors that the call fetches.
    ///
    /// Fails with `NOT_FOUND` if no function has the name, else with the status of the function.
    pub fn run(&self, call: GraphCall) -> Call<Fetched> {
        self.begin(Request::StarRunGraph(Box::new(call)), fetched)
    }

    /// Receives the tensor with this rendezvous key from a step of the task. Each key is handed out
    /// once; the call waits until the tensor is there.
    pub fn receive(&self, step_id: i64, key: impl Into<Text>) -> Call<Tensor> {
        let key = key.into();
        self.begin(Request::RecvTensor { step_id, key }, |response| {
            let mut tensors = tensors(response)?;
            let first = tensors.pop();
            first.ok_or_else(|| unexpected("no tensor"))
        })
    }

    /// Receives the tensors with these rendezvous keys, at least one, together and in their order.
    pub fn receive_all(
        &self,
        step_id: i64,
        keys: impl IntoIterator<Item = impl Into<Text>>,
    ) -> Call<Vec<Tensor>> {
        let keys: KeyList = keys.into_iter().map(Into::into).collect();
        self.begin(Request::FuseRecvTensor { step_id, keys }, tensors)
    }

    /// The tensors of the task's store with these names, in their order.
    ///
    /// Fails with `NOT_FOUND` if one is not there.
    pub fn pull(&self, names: impl IntoIterator<Item = impl Into<Text>>) -> Call<Fetched> {
        self.run(GraphCall {
            fetches: names.into_iter().map(Into::into).collect(),
            ..GraphCall::new(STORE_PULL)
        })
    }

    /// Puts tensors into the task's store, all or none; those of the same names are replaced. More
    /// than one call takes go by a [`StagedPush`](crate::StagedPush).
    pub fn push(&self, tensors: impl Into<Fetched>) -> Call<()> {
        let call = GraphCall {
            feeds: tensors.into().into(),
            ..GraphCall::new(STORE_PUSH)
        };
        self.begin(Request::StarRunGraph(Box::new(call)), |_| Ok(()))
    }

    /// Asks the task who it is: its devices, their incarnations and memory.
    pub fn status(&self) -> Call<proto::GetStatusResponse> {
        self.begin(message(Method::GetStatus, Buffer::new()), decoded)
    }

    /// Removes a step of the task with all its tensors; receives that wait there fail with
    /// `ABORTED`.
    pub fn cleanup_step(&self, step_id: i64) -> Call<()> {
        let request = proto::CleanupGraphRequest { step_id };
        let body = Buffer::from(request.encode_to_vec());
        self.begin(message(Method::CleanupGraph, body), |_| Ok(()))
    }

    /// Calls the method of a service that an envelope names.
    pub(crate) fn call_envelope(
        &self,
        envelope: Result<Envelope, Status>,
        timeout: Option<Duration>,
    ) -> Call<Envelope> {
        let request = match envelope {
            Ok(envelope) => Request::Unary(Box::new(envelope)),
            Err(status) => return Call::failed(status, take_envelope),
        };
        let spec = CallSpec::new(&self.peer, request).with_timeout(timeout);
        self.client.begin(spec, take_envelope)
    }

    /// Calls the method of a service that streams.
    pub(crate) fn call_stream(
        &self,
        envelope: Result<Envelope, Status>,
        timeout: Option<Duration>,
        ends: StreamEnds,
    ) -> Call<Envelope> {
        (self.client).begin_stream(&self.peer, envelope, timeout, ends)
    }

    /// Runs code on the shard that has the connection.
    ///
    /// # Errors
    /// As of [`Client::run_on`].
    pub(crate) fn run_on_shard(
        &self,
        code: impl FnOnce(&mut ShardContext<'_>) + Send + 'static,
    ) -> Result<(), Status> {
        self.client.run_on(self.peer.shard(), code)
    }

    /// Makes a call of any kind.
    pub fn call(&self, request: Request) -> Call {
        self.client.call(&self.peer, request, self.timeout)
    }

    /// Closes the connection, if there is one. Calls on it fail with `UNAVAILABLE`; later calls
    /// connect again.
    pub fn disconnect(&self) {
        self.client.disconnect(&self.peer);
    }

    fn begin<T>(&self, request: Request, take: fn(Response) -> Result<T, Status>) -> Call<T> {
        let spec = CallSpec::new(&self.peer, request).with_timeout(self.timeout);
        self.client.begin(spec, take)
    }
}

fn message(method: Method, body: Buffer) -> Request {
    Request::Message { method, body }
}

fn fetched(response: Response) -> Result<Fetched, Status> {
    match response {
        Response::Fetched(results) => Ok(results.into()),
        Response::Message(_) | Response::Tensors(_) | Response::Unary(_) => {
            Err(unexpected("no named tensors"))
        }
    }
}

fn tensors(response: Response) -> Result<Vec<Tensor>, Status> {
    match response {
        Response::Tensors(tensors) => Ok(tensors.into_vec()),
        Response::Message(_) | Response::Fetched(_) | Response::Unary(_) => {
            Err(unexpected("no tensors"))
        }
    }
}

fn decoded<M: Message + Default>(response: Response) -> Result<M, Status> {
    match response {
        Response::Message(body) => M::decode(&body[..])
            .map_err(|error| Status::new(Code::DataLoss, format!("the answer: {error}"))),
        Response::Tensors(_) | Response::Fetched(_) | Response::Unary(_) => {
            Err(unexpected("no message"))
        }
    }
}

fn unexpected(found: &str) -> Status {
    Status::new(
        Code::DataLoss,
        format!("the answer is of another kind than the question: {found}"),
    )
}
