//! The engine: all shards of one task, and the handle that a program holds.

mod arena_parts;
mod builder;
mod cpu_latency;
mod gate;
mod lending;
mod local;
mod options;
mod queues;
mod report;
mod star_port;
mod start;
mod steps;

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use grpcxx_memory::OwnFd;
use grpcxx_rpc::{
    Envelope, Fetched, GraphCall, RendezvousKey, Request, Status, Tensor, Text, proto,
};
use grpcxx_tls::{LiveCounters, TlsCounters};

pub use self::builder::{EngineBuilder, ListenAddress};
pub use self::cpu_latency::CpuLatency;
use self::gate::Gate;
pub use self::local::LocalEngine;
pub use self::options::{EngineError, EngineOptions, SPIN_DEFAULT};
pub use self::report::{Rdma, SharedMemory, StartReport};
pub use self::star_port::outgoing_ports_warning;
use crate::call::{Call, CallSpec};
use crate::client::{Client, Peer};
use crate::cluster::{TaskId, reachable};
use crate::command::Command;
use crate::counters::Counters;
use crate::exposition::{Exposition, ProgramPage, Telling, ToldMore};
use crate::function::{AsyncFunction, Function, HoldWatch, ShortFunction};
use crate::host::{HostError, HostHandle, TaskSpawner, is_turning, wait};
use crate::local::would_block;
use crate::metrics::Metrics;
use crate::placement::CpuClaims;
use crate::policy::Authority;
use crate::registry;
use crate::remote::Remote;
use crate::service::{
    Caller, MethodReport, Place, RawSink, RawStream, ServiceReport, StreamStart, TypedService,
    take_envelope,
};
use crate::shard::{ShardContext, SharedParts};
use crate::sharded::{Sharded, Shards};
use crate::tls::Certificates;

/// A running task: its shards, its listener, its steps, its store and its functions.
///
/// Dropping it stops the shards without grace; [`Engine::shutdown`] lets what is in flight finish
/// first.
pub struct Engine {
    shared: SharedParts,
    client: Client,
    report: StartReport,
    /// None of them once the engine was told to stop.
    hosts: Mutex<Vec<HostHandle>>,
    gate: Gate,
    shards: Shards,
    metrics: Metrics,
    /// Calls of own methods so far, which take the shards in turn.
    turns: AtomicUsize,
    /// How long code of the program may hold its shard before the log names it.
    shard_held_max: Option<Duration>,
    /// What connections prove themselves with, if some are TLS.
    certificates: Option<Arc<Certificates>>,
    /// Those of each shard, if some connections are TLS.
    tls_counters: Vec<Arc<LiveCounters>>,
    /// Keeps what [`EngineOptions::cpu_latency`] asks for in force.
    _cpu_latency: Option<OwnFd>,
    /// Tells other tasks of the host which CPUs these shards have.
    _cpu_claims: CpuClaims,
}

impl Engine {
    /// What an engine is made of, to be changed and started.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }

    /// Starts the shards and, if asked to, listens on the star port.
    ///
    /// # Errors
    /// What could not be had: the port, memory, a thread, the host or driver that was asked for.
    pub fn start(options: EngineOptions) -> Result<Self, EngineError> {
        Self::start_with(options, |_| ())
    }

    /// Makes calls to peers; cheap to clone.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The task at `host:port`, to call it. The connection is made at the first call, and again
    /// after it was lost; a name is looked up before each dial.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the address is no `host:port`, `RESOURCE_EXHAUSTED` if there are too
    /// many peers.
    pub fn connect(&self, address: &str) -> Result<Remote, Status> {
        let peer = self.client.peer(address)?;
        Ok(Remote::new(self.client(), peer))
    }

    /// Where the star port listens, if it does.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.report.star_address
    }

    /// An address by which others reach the star port, if it listens: where it listens on all
    /// addresses of this host, the one that the host has on its way out.
    pub fn reachable_addr(&self) -> Option<SocketAddr> {
        self.local_addr().map(reachable)
    }

    /// What was chosen at start; its text is the line for the log.
    pub fn start_report(&self) -> &StartReport {
        &self.report
    }

    /// What decides who may do what, for other doors to the task than its star port.
    pub fn authority(&self) -> Arc<Authority> {
        Arc::clone(&self.shared.authority)
    }

    /// What shards have done with TLS since they started, over all of them.
    pub fn tls_counters(&self) -> TlsCounters {
        TlsCounters::sum(self.tls_counters.iter().map(|counters| counters.read()))
    }

    /// What connections prove themselves with, if some are TLS: for other servers of this task.
    pub fn certificates(&self) -> Option<Arc<Certificates>> {
        self.certificates.clone()
    }

    /// Which task this is.
    pub fn task(&self) -> &TaskId {
        self.shared.task.id()
    }

    /// The number that tells this run of the task from every other, and stands in its rendezvous
    /// keys.
    pub fn incarnation(&self) -> u64 {
        self.shared.task.incarnation()
    }

    /// The task's first device, as GetStatus reports it.
    pub fn device_attributes(&self) -> &proto::DeviceAttributes {
        self.shared.task.attributes()
    }

    /// Full names and incarnations of the task's devices, in byte order of the names.
    pub fn devices(&self) -> impl Iterator<Item = (&Text, u64)> {
        self.shared.task.devices()
    }

    /// The rendezvous key under which `receiver` takes the tensor called `edge` from this task's
    /// first device, both on their first CPU. It holds for this run of the task only.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if a name has a character that keys do not allow.
    pub fn key(&self, receiver: &TaskId, edge: &str) -> Result<Text, Status> {
        let source_device = &self.device_attributes().name;
        let target_device = receiver.device("CPU", 0);
        let key = RendezvousKey::new(source_device, self.incarnation(), &target_device, edge)?;
        Ok(key.to_text())
    }

    /// Lets peers call `function` by `name`; a function of that name is replaced.
    pub fn register(&self, name: impl Into<Text>, function: Arc<dyn Function>) {
        let name = name.into();
        if !function.may_block() && !function.runs_anywhere() {
            self.shared.mailboxes.bind_all();
        }
        self.shared.functions.rcu(|functions| {
            let mut functions = registry::Functions::clone(functions);
            functions.insert(name.clone(), Arc::clone(&function));
            functions
        });
    }

    /// Lets peers call a closure by `name`, which may take its time and block. It runs on a thread
    /// of the compute pool; one that proves to be short, on that of a shard. It returns the tensors
    /// that the call fetches, by name.
    pub fn register_fn<F, R>(&self, name: impl Into<Text>, function: F)
    where
        F: Fn(GraphCall) -> Result<R, Status> + Send + Sync + 'static,
        R: Into<Fetched>,
    {
        self.register(name, Arc::new(function));
    }

    /// Lets peers call a closure by `name` that takes a few microseconds and never blocks: it runs
    /// on the shard that took the call in, without a hop to the compute pool and back, and holds up
    /// that shard meanwhile. The log names one that holds it for longer than
    /// [`EngineOptions::shard_held_max`].
    pub fn register_short<F, R>(&self, name: impl Into<Text>, function: F)
    where
        F: Fn(GraphCall) -> Result<R, Status> + Send + Sync + 'static,
        R: Into<Fetched>,
    {
        let name = name.into();
        let watch = self.hold_watch(name.clone());
        let code = move |call| function(call).map(|results| results.into().into());
        self.register(name, Arc::new(ShortFunction { code, watch }));
    }

    /// What looks how long a [`Function`] that never blocks holds its shard: the log names one that
    /// holds it for longer than [`EngineOptions::shard_held_max`].
    pub fn hold_watch(&self, name: impl Into<Text>) -> HoldWatch {
        HoldWatch::new(name.into(), self.shard_held_max)
    }

    /// Lets peers call an asynchronous closure by `name`. Its future runs on a shard, beside the
    /// shard's own work, so many calls wait at once without a thread for each; it must not block.
    /// The log names one that holds the shard for longer than
    /// [`EngineOptions::shard_held_max`].
    pub fn register_async<F, T, R>(&self, name: impl Into<Text>, function: F)
    where
        F: Fn(GraphCall) -> T + Send + Sync + 'static,
        T: Future<Output = Result<R, Status>> + 'static,
        R: Into<Fetched>,
    {
        let name = name.into();
        let watch = self.hold_watch(name.clone());
        let function = AsyncFunction::new(watch, function);
        self.register(name, Arc::new(function));
    }

    /// Serves a service that `grpcxx-build` made; one of that name is replaced. Peers call its
    /// methods by their paths, over star and, if the task has one, at its gRPC endpoint.
    pub fn add_service<S: TypedService>(&self, service: S) {
        let methods = service.into_methods();
        if methods.place == Place::Shard {
            for spawner in self.shards.spawners() {
                // The first future of a shard brings its executor, on which methods rely. A shard
                // that has ended has no use for it.
                let _has_ended = spawner.spawn_local(|| async {});
            }
        }
        self.shared.mailboxes.bind_all();
        self.shared.functions.rcu(|functions| {
            let mut functions = registry::Functions::clone(functions);
            functions.insert_service(&methods, self.shards.len(), self.shard_held_max);
            functions
        });
    }

    /// The services that are served, in the order of their names.
    pub fn services(&self) -> Vec<ServiceReport> {
        self.shared.functions.load().services()
    }

    /// Whether a service has the method at this path.
    pub fn serves(&self, path: &str) -> bool {
        self.shared.functions.load().method(path).is_some()
    }

    /// Calls a method of this task's own services, for other doors to them than the star port. It
    /// counts against the share of `caller`, whose deadline ends it.
    pub fn call_own(&self, caller: Caller, envelope: Envelope) -> Call<Envelope> {
        let peer = self.own_for(caller);
        let request = Request::Unary(Box::new(envelope));
        let spec = CallSpec::new(&peer, request).with_timeout(caller.timeout());
        self.client.begin(spec, take_envelope)
    }

    /// Whether the method at this path takes or answers with a stream.
    pub fn streams(&self, path: &str) -> bool {
        let functions = self.shared.functions.load();
        functions
            .method(path)
            .is_some_and(|method| method.streams())
    }

    /// Calls a method of this task's own services that streams, for other doors to them than the
    /// star port. The messages are bytes, and the stream is one of those that `caller` may have,
    /// whose deadline bounds all of it.
    pub fn stream_own(&self, caller: Caller, envelope: Envelope) -> (RawSink, RawStream) {
        let peer = self.own_for(caller);
        let begin =
            |envelope, timeout, ends| self.client.begin_stream(&peer, envelope, timeout, ends);
        RawStream::begin(StreamStart::new(&begin, Ok(envelope), caller.timeout()))
    }

    /// This task as somebody calls it, on the shard whose turn it is.
    fn own_for(&self, caller: Caller) -> Peer {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        Peer::own_for(caller, turn % self.shared.mailboxes.len())
    }

    /// What was counted of the methods of services, in the order of their paths.
    pub fn method_reports(&self) -> Vec<MethodReport> {
        self.shared.functions.load().method_reports()
    }

    /// Runs code on a shard's thread, between two turns of its work. It must not block.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if there is no such shard, `RESOURCE_EXHAUSTED` if its inbox is full.
    pub fn run_on(
        &self,
        shard: usize,
        code: impl FnOnce(&mut ShardContext<'_>) + Send + 'static,
    ) -> Result<(), Status> {
        self.client.run_on(shard, code)
    }

    /// Puts tensors into the store, all or none; those of the same names are replaced.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` beyond a limit of the store.
    pub fn store_put(&self, tensors: Vec<(Text, Tensor)>) -> Result<(), Status> {
        registry::put_all(&self.shared.store, tensors)
    }

    /// The names and tensors of the store, in byte order of the names.
    pub fn stored(&self) -> Vec<(Text, Tensor)> {
        self.shared
            .store
            .load()
            .iter()
            .map(|(name, tensor)| (name.clone(), tensor.clone()))
            .collect()
    }

    /// The tensor of the store with this name, sharing its data.
    ///
    /// # Errors
    /// `NOT_FOUND` with the names nearest in order.
    pub fn store_fetch(&self, name: &str) -> Result<Tensor, Status> {
        self.shared.store.load().fetch(name)
    }

    /// The tensors of these names, as they are in the store at one time.
    ///
    /// # Errors
    /// As of [`Engine::store_fetch`].
    pub fn store_fetch_all(&self, names: &[Text]) -> Result<Vec<Tensor>, Status> {
        let store = self.shared.store.load();
        names.iter().map(|name| store.fetch(name)).collect()
    }

    /// Removes the tensors of these names from the store; names that are not there are left out.
    pub fn store_remove(&self, names: &[Text]) {
        registry::remove_all(&self.shared.store, names);
    }

    /// Serves a request as if a peer had sent it.
    pub fn serve(&self, request: Request, timeout: Option<Duration>) -> Call {
        self.client.call(&Peer::own(0), request, timeout)
    }

    /// What all shards have counted so far.
    pub fn counters(&self) -> Counters {
        Counters::sum(&self.shared.counters)
    }

    /// Reads what this engine has counted, as long as whoever holds that likes.
    pub fn exposition(&self) -> Exposition {
        Exposition {
            client: self.client(),
            authority: self.authority(),
            counters: Arc::clone(&self.shared.counters),
            functions: self.shared.functions.clone(),
            store: self.shared.store.clone(),
            staged: Arc::clone(&self.shared.staged),
            arena_extends: self.report.arena_goes_beyond,
            tls_counters: self.tls_counters.clone(),
            program: self.metrics.clone(),
        }
    }

    /// Address space that memory of other processes takes in this one, in bytes: rings and arenas
    /// of connections in shared memory, of all engines.
    pub fn mapped_peer_bytes(&self) -> u64 {
        grpcxx_shm::mapped_bytes()
    }

    /// Adds to what the engine tells peers that ask for the numbers of a task that listens and for
    /// what it waits for, as `grpcxx top` and `grpcxx inspect` do, until what this returns is
    /// dropped. What was added before is not told any more.
    pub fn tell_more(&self, program: ProgramPage) -> ToldMore {
        let more = ToldMore::new(program);
        if self.local_addr().is_some() {
            for (name, function) in Telling::all(&self.exposition(), &self.report, &more) {
                self.register(name, function);
            }
        }
        more
    }

    /// Runs futures of the program on a shard's thread, beside the shard.
    pub fn spawner(&self, shard: usize) -> Option<&TaskSpawner> {
        self.shards.spawners().get(shard)
    }

    /// The shards, to run code on them from any thread.
    pub fn shards(&self) -> Shards {
        self.shards.clone()
    }

    /// What the program itself counts, on shards without a lock.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Makes a value on each shard, where `make` gets the number of the shard; see [`Sharded`].
    /// Futures await [`Sharded::start`] in place of this. While the engine is prepared
    /// ([`EngineBuilder::start_with`]) shards may not turn yet: it does as [`Sharded::begin`] then.
    ///
    /// # Errors
    /// The engine has ended, or a shard's inbox is full; `FAILED_PRECONDITION` on the thread of a
    /// shard, which must not block.
    pub fn sharded<T, F>(&self, make: F) -> Result<Sharded<T>, Status>
    where
        T: 'static,
        F: Fn(usize) -> T + Send + Sync + 'static,
    {
        if self.shards.current().is_some() {
            return Err(would_block());
        }
        if !self.gate.is_open() {
            return Ok(Sharded::begin(&self.shards, make));
        }
        wait(Sharded::start(&self.shards, make))
    }

    /// Stops: no new connections and calls, what is in flight gets `grace` to finish, then all
    /// links close.
    ///
    /// Code that runs on one of the engine's shards, such as a
    /// [`CompletionHandler`](crate::CompletionHandler), does not wait for that: the shards end
    /// behind it. The same holds where it drops the engine.
    ///
    /// # Errors
    /// A shard had ended before because its thread failed.
    pub fn shutdown(self, grace: Duration) -> Result<(), HostError> {
        self.stop(grace)
    }

    fn hosts(&self) -> MutexGuard<'_, Vec<HostHandle>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what [`Engine::shutdown`] does to an engine that others hold too, whose calls of it
    /// fail from then on. One thread waits until it has ended; others wait for nothing.
    ///
    /// # Errors
    /// As of [`Engine::shutdown`].
    pub fn stop(&self, grace: Duration) -> Result<(), HostError> {
        if self.shared.mailboxes.are_inherited() {
            // The threads are the parent's.
            std::mem::forget(std::mem::take(&mut *self.hosts()));
            return Ok(());
        }
        for shard in 0..self.shared.mailboxes.len() {
            self.shared
                .mailboxes
                .deliver(shard, Command::Stop { grace });
        }
        self.gate.open();
        if self.shards.current().is_some() || is_turning() {
            // A shard that waits for its own end waits for ever. Another thread may wait for it.
            return Ok(());
        }
        let hosts = std::mem::take(&mut *self.hosts());
        let mut result = Ok(());
        for host in hosts {
            let ended = host.join();
            if result.is_ok() {
                result = ended;
            }
        }
        result
    }

    /// Tells `witness` once if the engine dies, now if it was before, on the thread of the shard
    /// that has panicked. Links of that shard close behind it, so the witness should not take long.
    ///
    /// An engine whose shard has panicked ends as a whole: links close, calls under way and all
    /// later ones fail with [`Reason::ShardDied`](grpcxx_rpc::Reason::ShardDied). Nothing brings it
    /// back.
    pub fn on_death(&self, witness: impl FnOnce(&HostError) + Send + 'static) {
        self.shared.mailboxes.fate().witness(Box::new(witness));
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Err(error) = self.stop(Duration::ZERO) {
            tracing::error!(%error, "a shard had failed");
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({})", self.report)
    }
}

/// Something like a random number without a dependency: different for each start of a process.
pub(crate) fn fresh_incarnation() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u128(Instant::now().elapsed().as_nanos());
    hasher.write_u32(std::process::id());
    hasher.finish()
}
