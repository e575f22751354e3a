//! The options of an engine, one method for each, with units and defaults.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::{Engine, EngineError, EngineOptions, LocalEngine};
use crate::client::Resolve;
use crate::cluster::TaskId;
use crate::config::{Config, ConfigError};
use crate::function::Service;
use crate::host::{HostHandle, HostSetting};
use crate::placement::CpuList;
use crate::policy::Policy;
use crate::task::Device;

/// Makes an [`Engine`].
///
/// Without any call it makes an engine that only calls others: one shard, no port, shared memory
/// and RDMA where both ends have them.
///
/// ```
/// use std::time::Duration;
///
/// use grpcxx_runtime::Engine;
///
/// let engine = Engine::builder()
///     .task("ps", 0)
///     .listen("127.0.0.1:0")
///     .shards(2)
///     .arena_bytes(64 << 20)
///     .start()?;
/// assert!(engine.local_addr().is_some());
/// engine.shutdown(Duration::from_secs(1))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a builder makes an engine when it is started"]
pub struct EngineBuilder {
    options: EngineOptions,
    listen: Option<ListenAddress>,
}

/// Where a star port listens: an address, or a text such as `0.0.0.0:7777` or `[::]:0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress(Given);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Given {
    Address(SocketAddr),
    Text(String),
}

impl EngineBuilder {
    /// Takes all settings from the environment, for task `index` of job `job` in a cluster of
    /// `total_tasks` tasks: `docs/configuration.md` lists the variables. What is odd about them is
    /// logged.
    ///
    /// # Errors
    /// All that is wrong with the variables, together.
    pub fn from_env(
        job: impl Into<String>,
        index: u32,
        total_tasks: usize,
    ) -> Result<Self, ConfigError> {
        let (config, warnings) = Config::from_env()?;
        for warning in warnings {
            tracing::warn!("{}", warning.message);
        }
        let task = TaskId::new(job, index);
        Ok(Self::from(EngineOptions::from_config(
            &config,
            task,
            total_tasks,
        )))
    }

    /// Which task of the cluster the engine is. Default: task 0 of job `localhost`.
    pub fn task(mut self, job: impl Into<String>, index: u32) -> Self {
        self.options.task = TaskId::new(job, index);
        self
    }

    /// Adds a device, whose name and incarnation stand in rendezvous keys. Default: `CPU:0`.
    pub fn device(mut self, device: Device) -> Self {
        self.options.devices.push(device);
        self
    }

    /// Where the star port listens; port 0 takes a free one. Default: nowhere.
    pub fn listen(mut self, address: impl Into<ListenAddress>) -> Self {
        self.listen = Some(address.into());
        self
    }

    /// Number of shards, 1 to 1024: threads with connections, memory and timers of their own.
    /// Default: 1.
    pub fn shards(mut self, shards: usize) -> Self {
        self.options.shards = shards;
        self
    }

    /// Pins each shard to a CPU of its own. Default: false.
    pub fn pin(mut self, pin: bool) -> Self {
        self.options.pin = pin;
        self
    }

    /// Pins shards to these CPUs, in this order. Default: as [`EngineBuilder::pin`] says.
    pub fn cpus(mut self, cpus: CpuList) -> Self {
        self.options.cpus = Some(cpus);
        self
    }

    /// Lets shards spin without end, so that none of them ever has to wake up. Each needs a CPU of
    /// its own then. Default: false.
    pub fn polling(mut self, polling: bool) -> Self {
        self.options.polling = polling;
        self
    }

    /// How long an idle shard spins before it parks. Default:
    /// [`SPIN_DEFAULT`](super::SPIN_DEFAULT), 30 us.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.options.spin = spin;
        self
    }

    /// How long any CPU of the machine may take to wake up while the engine runs. It costs power,
    /// and the right to write `/dev/cpu_dma_latency`. Default: as the system says.
    pub fn cpu_latency(mut self, latency: Duration) -> Self {
        self.options.cpu_latency = Some(latency);
        self
    }

    /// Whether a thread that waits for a call turns the shard of that call meanwhile; see
    /// [`EngineOptions::lends_shards`]. Default: unless the engine listens with pinned shards.
    pub fn lends_shards(mut self, lends: bool) -> Self {
        self.options.lends_shards = Some(lends);
        self
    }

    /// What turns the shards. Default: glommio where it can start, else a loop of our own.
    pub fn host(mut self, host: HostSetting) -> Self {
        self.options.host = host;
        self
    }

    /// Memory of each shard for received tensors, in bytes. Default: an equal share of three
    /// quarters of the machine, and beyond that what is free of it.
    pub fn arena_bytes(mut self, bytes: usize) -> Self {
        let shards = self.options.shards;
        let arena = self
            .options
            .arena
            .get_or_insert_with(|| grpcxx_memory::ArenaOptions::share_of_machine(shards));
        arena.capacity_bytes = bytes;
        arena.headroom = None;
        self
    }

    /// Lets connections between processes of one host and user go on in shared memory. Default:
    /// true.
    pub fn shared_memory(mut self, allow: bool) -> Self {
        self.options.shm = if allow {
            self.options.shm.or_else(|| EngineOptions::default().shm)
        } else {
            None
        };
        self
    }

    /// Lets connections go on over RDMA where both ends have a device. Default: true.
    pub fn rdma(mut self, allow: bool) -> Self {
        self.options.rdma = if allow {
            self.options.rdma.or_else(|| EngineOptions::default().rdma)
        } else {
            None
        };
        self
    }

    /// Who may do what. Default: [`Policy::default`].
    pub fn policy(mut self, policy: Policy) -> Self {
        self.options.policy = policy;
        self
    }

    /// Announces what goes beyond star to peers that know it; others never see it. Default: true.
    pub fn extensions(mut self, announce: bool) -> Self {
        self.options.extensions = announce;
        self
    }

    /// How long a call without a timeout waits for a connection. Default: 120 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.options.channel.connection_timeout = timeout;
        self
    }

    /// Time from a failed dial to the next. Default: 1 s.
    pub fn redial_delay(mut self, delay: Duration) -> Self {
        self.options.channel.redial_delay = delay;
        self
    }

    /// Threads that run functions, besides those that wait for calls. If it is set, short functions
    /// run there too, and never on a shard. Default: one for each allowed CPU.
    pub fn compute_threads(mut self, threads: usize) -> Self {
        self.options.compute_threads = Some(threads);
        self
    }

    /// Sees each request before the built-in services do. Default: none.
    pub fn service(mut self, service: Arc<dyn Service>) -> Self {
        self.options.service = Some(service);
        self
    }

    /// Finds the addresses of peers whose hosts have names. Default: the system does.
    pub fn resolver(mut self, resolver: Arc<dyn Resolve>) -> Self {
        self.options.resolver = resolver;
        self
    }

    /// Changes options that have no method here: limits of connections, steps and the store,
    /// sockets.
    pub fn configure(mut self, change: impl FnOnce(&mut EngineOptions)) -> Self {
        change(&mut self.options);
        self
    }

    /// Makes an engine without threads, whose one shard the calling thread turns while it waits for
    /// calls: see [`LocalEngine`]. It only calls, so it listens nowhere.
    ///
    /// # Errors
    /// An address to listen at was given; else what could not be had.
    pub fn start_local(self) -> Result<LocalEngine, EngineError> {
        if self.listen.is_some() || self.options.listen.is_some() {
            let text = "an engine without threads cannot listen; start one with threads";
            return Err(EngineError::Options(text.to_owned()));
        }
        super::start::start_local(self.options)
    }

    /// Starts the shards and, if asked to, listens on the star port.
    ///
    /// # Errors
    /// What could not be had: an address, the port, memory, a thread, the host or driver that was
    /// asked for.
    pub fn start(self) -> Result<Engine, EngineError> {
        self.start_with(|_| ())
    }

    /// As [`EngineBuilder::start`]; who comes is served when `prepare` is done. Functions and
    /// services that it registers are there for the first caller: one that had waited for the port
    /// would else be told that they do not exist. `prepare` must wait for nothing that shards do,
    /// which may not turn yet. State per shard is made by [`Engine::sharded`], which does not wait
    /// then.
    ///
    /// ```
    /// use grpcxx_rpc::{GraphCall, Tensor};
    /// use grpcxx_runtime::Engine;
    ///
    /// let engine = Engine::builder().listen("127.0.0.1:0").start_with(|engine| {
    ///     engine.register_fn("one", |_: GraphCall| Ok([("y", Tensor::scalar(1.0_f32))]));
    /// })?;
    /// # Ok::<(), grpcxx_runtime::EngineError>(())
    /// ```
    ///
    /// # Errors
    /// As [`EngineBuilder::start`].
    pub fn start_with(mut self, prepare: impl FnOnce(&Engine)) -> Result<Engine, EngineError> {
        match self.listen {
            None => {}
            Some(ListenAddress(Given::Address(address))) => self.options.listen = Some(address),
            Some(ListenAddress(Given::Text(text))) => {
                let address = text.parse().map_err(|_| {
                    let shown: String = text.chars().take(ADDRESS_CHARS_MAX).collect();
                    EngineError::Options(format!(
                        "cannot listen on {shown:?}; write an address and a port, such as 127.0.0.1:7777 or [::]:7777"
                    ))
                })?;
                self.options.listen = Some(address);
            }
        }
        Engine::start_with(self.options, prepare)
    }
}

impl Engine {
    /// Starts the shards and, if asked to, listens on the star port. Who comes there is served when
    /// `prepare` is done, so nobody meets a task without its functions or with an empty store.
    /// `prepare` must not wait for calls: shards may not turn yet.
    ///
    /// # Errors
    /// As of [`Engine::start`].
    pub fn start_with(
        options: EngineOptions,
        prepare: impl FnOnce(&Self),
    ) -> Result<Self, EngineError> {
        let engine = Self::start_closed(options)?;
        prepare(&engine);
        engine.open()?;
        Ok(engine)
    }

    /// As [`Engine::start`]; who comes is served from [`Engine::open`] on. Between the two, as in
    /// `prepare` of [`Engine::start_with`], nothing may wait for calls.
    ///
    /// # Errors
    /// As of [`Engine::start`].
    pub fn start_closed(options: EngineOptions) -> Result<Self, EngineError> {
        super::start::start(options)
    }

    /// Lets those in who have come to an engine of [`Engine::start_closed`]. Does nothing to one
    /// that is open.
    ///
    /// # Errors
    /// Why a shard does not turn. The engine has stopped then.
    pub fn open(&self) -> Result<(), EngineError> {
        self.gate.open();
        let turning = self.hosts().iter().try_for_each(HostHandle::wait_started);
        if turning.is_err() {
            // The shards that did start would hold the port; the error of the one that did not is
            // what counts.
            let _ = self.stop(Duration::ZERO);
        }
        Ok(turning?)
    }
}

impl From<EngineOptions> for EngineBuilder {
    fn from(options: EngineOptions) -> Self {
        Self {
            options,
            listen: None,
        }
    }
}

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> Self {
        Self(Given::Address(address))
    }
}

impl<I: Into<IpAddr>> From<(I, u16)> for ListenAddress {
    fn from(address: (I, u16)) -> Self {
        Self(Given::Address(address.into()))
    }
}

impl From<&str> for ListenAddress {
    fn from(text: &str) -> Self {
        Self(Given::Text(text.to_owned()))
    }
}

impl From<String> for ListenAddress {
    fn from(text: String) -> Self {
        Self(Given::Text(text))
    }
}

/// Most characters of a wrong address in an error.
const ADDRESS_CHARS_MAX: usize = 80;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn an_address_that_cannot_be_read_is_an_error_of_the_start() {
        let error = Engine::builder().listen("nowhere").start().unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot listen on \"nowhere\"; write an address and a port, such as 127.0.0.1:7777 or [::]:7777"
        );
    }

    #[test]
    fn addresses_are_given_as_values_or_texts() {
        let address = SocketAddr::from(([127, 0, 0, 1], 7));
        let given = ListenAddress::from((Ipv4Addr::LOCALHOST, 7));
        assert_eq!(given, ListenAddress::from(address));
        assert_ne!(given, ListenAddress::from("127.0.0.1:7"));
    }

    #[test]
    fn media_can_be_left_out_and_taken_back() {
        let builder = Engine::builder().shared_memory(false).rdma(false);
        assert!(builder.options.shm.is_none() && builder.options.rdma.is_none());
        let builder = builder.shared_memory(true).rdma(true);
        assert!(builder.options.shm.is_some() && builder.options.rdma.is_some());
    }
}
