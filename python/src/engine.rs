//! An engine of Python: its start, what it tells of itself, and its end.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use grpcxx_capi::held::HeldEngine;
use grpcxx_capi::start::{Page, listen_address};
use grpcxx_rpc::{Code, Status};
use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::config::Config;
use grpcxx_runtime::exposition::ProgramPage;
use grpcxx_runtime::{Client, Engine as RuntimeEngine, EngineOptions, log as runtime_log};
use pyo3::prelude::*;

use crate::argument::{self, Word};
use crate::completions::Completions;
use crate::function::{PythonFunction, SEND_FUNCTION, SendFunction};
use crate::group::{Group, Wanted};
use crate::peer::Peer;
use crate::request::timeout_of;
use crate::shard::may_wait;
use crate::status::{checked, error, invalid, refused};
use crate::waits::run_elsewhere;

/// One engine: its threads, its connections, and perhaps a port.
#[pyclass(frozen, module = "grpcxx._native")]
pub(crate) struct Engine {
    core: Arc<Core>,
}

/// What the objects of one engine share.
pub(crate) struct Core {
    engine: HeldEngine,
    metrics_address: Option<String>,
    client: Client,
    completions: Arc<Completions>,
    is_closed: AtomicBool,
    address: Option<String>,
    listening: Option<String>,
    report: String,
    device: (String, u64),
}

impl Core {
    fn new(engine: RuntimeEngine, page: Page) -> Self {
        let attributes = engine.device_attributes();
        Self {
            client: engine.client(),
            completions: Arc::default(),
            is_closed: AtomicBool::new(false),
            address: engine.reachable_addr().map(|address| address.to_string()),
            listening: engine.local_addr().map(|address| address.to_string()),
            report: engine.start_report().to_string(),
            device: (attributes.name.clone(), engine.incarnation()),
            metrics_address: page.address().map(|address| address.to_string()),
            engine: HeldEngine::new(engine, page),
        }
    }

    /// Raises if the engine cannot be used any more.
    pub(crate) fn check_open(&self, py: Python<'_>) -> PyResult<()> {
        if let Some(status) = self.client.inherited() {
            return Err(error(py, &status));
        }
        match self.is_closed.load(Ordering::Relaxed) {
            true => Err(refused(py, Code::FailedPrecondition, "this is closed")),
            false => Ok(()),
        }
    }

    /// Runs code with the engine unless it has stopped.
    pub(crate) fn with<T>(
        &self,
        code: impl FnOnce(&RuntimeEngine) -> Result<T, Status>,
    ) -> Result<T, Status> {
        self.engine.with(code)
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn completions(&self) -> &Arc<Completions> {
        &self.completions
    }

    /// Name and incarnation of the first device.
    pub(crate) fn device(&self) -> (&str, u64) {
        (&self.device.0, self.device.1)
    }

    /// Stops the engine. The thread must not have the interpreter: functions may wait for it.
    fn stop(&self, grace: Duration) -> Result<(), Status> {
        self.is_closed.store(true, Ordering::Relaxed);
        let stopped = self.engine.stop(grace);
        self.completions.close();
        stopped
    }

    /// Whether another process has started it, of which this one is a child.
    pub(crate) fn is_inherited(&self) -> bool {
        self.client.inherited().is_some()
    }
}

impl Engine {
    pub(crate) fn core(&self) -> &Core {
        &self.core
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if !self.core.is_inherited() && !self.core.is_closed.load(Ordering::Relaxed) {
            // Functions that the engine waits for may need the interpreter.
            let stopped = Python::attach(|py| py.detach(|| self.core.stop(Duration::ZERO)));
            if let Err(status) = stopped {
                tracing::error!(%status, "the engine did not stop as it should");
            }
        }
    }
}

#[pymethods]
impl Engine {
    /// Starts an engine for a task; `listen` is an address or `None`. It serves nobody before it is
    /// opened. With `waits`, most of its calls are waited for by threads, though it listens.
    #[new]
    #[pyo3(signature = (job, index, listen, settings, waits=false))]
    fn start(
        py: Python<'_>,
        job: Word,
        #[pyo3(from_py_with = argument::index)] index: u32,
        listen: Option<Word>,
        settings: BTreeMap<String, String>,
        waits: bool,
    ) -> PyResult<Self> {
        let Word(job) = job;
        let listen = listen.as_ref().map(|listen| listen.0.as_str());
        if job.is_empty() {
            let text = "job is empty; give the name of the task's job";
            return Err(invalid(py, text));
        }
        let task = TaskId::new(job.as_str(), index);
        let started = py.detach(|| start(task, listen, &settings, waits));
        let (engine, page) = checked(py, started)?;
        let core = Arc::new(Core::new(engine, page));
        let send = SendFunction::new(&core);
        let registered = core.with(|engine| {
            engine.register(SEND_FUNCTION, Arc::new(send));
            Ok(())
        });
        checked(py, registered)?;
        Ok(Self { core })
    }

    /// Lets those in who have come.
    fn open(&self, py: Python<'_>) -> PyResult<()> {
        let opened = py.detach(|| self.core.with(grpcxx_capi::start::open));
        checked(py, opened)
    }

    /// Where others reach the engine, as `host:port`.
    #[getter]
    fn address(&self) -> Option<&str> {
        self.core.address.as_deref()
    }

    /// Where the engine listens, as `host:port`.
    #[getter]
    fn listening(&self) -> Option<&str> {
        self.core.listening.as_deref()
    }

    /// Where the engine serves metrics, as `host:port`.
    #[getter]
    fn metrics_address(&self) -> Option<&str> {
        self.core.metrics_address.as_deref()
    }

    /// One line: driver, host, shards and CPUs, and why.
    #[getter]
    fn report(&self) -> &str {
        &self.core.report
    }

    /// Raises if this cannot be used any more.
    fn check_open(&self, py: Python<'_>) -> PyResult<()> {
        self.core.check_open(py)
    }

    /// Whether another process has started it.
    pub(crate) fn is_inherited(&self) -> bool {
        self.core.is_inherited()
    }

    /// All counters of the engine by name.
    fn counters(&self, py: Python<'_>) -> PyResult<HashMap<&'static str, u64>> {
        self.core.check_open(py)?;
        let counters = checked(py, self.core.with(|engine| Ok(engine.counters())))?;
        let own = counters.entries().into_iter();
        let log = runtime_log::counters().entries();
        let all = own.chain(log).map(|(name, _, value)| (name, value));
        Ok(all.collect())
    }

    /// The task at an address, by job and index if a certificate shall prove them. Refuses a
    /// `timeout` that its calls could not have.
    fn peer(
        &self,
        py: Python<'_>,
        address: Word,
        #[pyo3(from_py_with = argument::task)] task: Option<(Word, u32)>,
        timeout: Option<f64>,
    ) -> PyResult<Peer> {
        self.core.check_open(py)?;
        timeout_of(py, timeout)?;
        let address = address.0.as_str();
        let client = self.core.client().clone();
        if let Some((Word(job), index)) = task {
            let task = TaskId::new(job.as_str(), index);
            checked(py, client.expect_task(address, task))?;
        }
        let peer = checked(py, client.peer(address))?;
        Ok(Peer::new(Arc::clone(&self.core), client, peer))
    }

    /// Meets the other ranks of a group, as one of them.
    #[expect(
        clippy::too_many_arguments,
        reason = "one call of Python into the engine"
    )]
    fn group(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::rank)] rank: u32,
        #[pyo3(from_py_with = argument::size)] size: u32,
        rendezvous: Word,
        name: Word,
        address: Option<Word>,
        #[pyo3(from_py_with = argument::generation)] generation: u64,
        timeout: f64,
        join_timeout: f64,
    ) -> PyResult<Group> {
        self.core.check_open(py)?;
        let wanted = Wanted {
            rank,
            size,
            rendezvous: &rendezvous.0,
            name: &name.0,
            address: address.map(|address| address.0.as_str().to_owned()),
            generation,
            timeout,
            join_timeout,
        };
        Group::join(py, &self.core, wanted)
    }

    /// Lets peers call a function of Python, which takes the names `accepted` (`None`: any) and
    /// cannot do without those of `required`.
    #[expect(
        clippy::too_many_arguments,
        reason = "one call of Python into the engine"
    )]
    fn register(
        &self,
        py: Python<'_>,
        name: Word,
        function: Py<PyAny>,
        accepted: Option<Vec<Py<pyo3::types::PyString>>>,
        required: Vec<String>,
        bind: Option<Py<PyAny>>,
        is_short: bool,
    ) -> PyResult<()> {
        self.core.check_open(py)?;
        let watch = self
            .core
            .with(|engine| Ok(engine.hold_watch(name.0.clone())));
        let short = is_short.then_some(checked(py, watch)?);
        let function = PythonFunction::new(py, function, accepted, required, bind, short)?;
        let registered = self.core.with(|engine| {
            engine.register(name.0, Arc::new(function));
            Ok(())
        });
        checked(py, registered)
    }

    /// Waits for calls with futures to end. An empty list: there will be no more.
    fn ended(&self, py: Python<'_>) -> Vec<Py<PyAny>> {
        py.detach(|| self.core.completions.wait())
    }

    /// Stops the engine; what is in flight has `grace` seconds to finish.
    fn close(&self, py: Python<'_>, grace: f64) -> PyResult<()> {
        let grace = Duration::try_from_secs_f64(grace.max(0.0)).unwrap_or(GRACE_MAX);
        checked(py, may_wait())?;
        let core = Arc::clone(&self.core);
        let names = ("grpcxx-close", "the end of the engine");
        run_elsewhere(py, names, move || core.stop(grace.min(GRACE_MAX)))
    }
}

fn start(
    task: TaskId,
    listen: Option<&str>,
    settings: &BTreeMap<String, String>,
    waits: bool,
) -> Result<(RuntimeEngine, Page), Status> {
    let (config, warnings) = Config::from_env_with(settings)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let mut options = EngineOptions::from_config(&config, task, 1);
    options.listen = listen.map(listen_address).transpose()?;
    options.lends_shards = waits.then_some(true);
    let engine = grpcxx_capi::start::start(options)?;
    let page = Page::start(&engine, config.metrics_address, ProgramPage::default())?;
    Ok((engine, page))
}

/// Longest time that an engine is given to end.
const GRACE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
