//! A task that Python calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use grpcxx_memory::Buffer;
use grpcxx_rpc::{Code, GraphCall, Method, Request, Response, Status, proto};
use grpcxx_runtime::{Client, Peer as RuntimePeer, STORE_PULL, STORE_PUSH};
use prost::Message;
use pyo3::prelude::*;

use crate::argument::{self, Word};
use crate::arrays::{Access, tensor_of};
use crate::call::{self, Begin, KnownDevice, Pending};
use crate::engine::Core;
use crate::fetched::Wanted;
use crate::flight::Departure;
use crate::function::SEND_FUNCTION;
use crate::large_push::{LargePush, is_large};
use crate::request::{graph_call, named_tensors, naming, rendezvous_key, tensors_of, timeout_of};
use crate::status::{checked, refused};

/// A task at an address.
#[pyclass(frozen, module = "grpcxx._native")]
pub(crate) struct Peer {
    core: Arc<Core>,
    client: Client,
    peer: RuntimePeer,
    is_closed: AtomicBool,
    device: Arc<KnownDevice>,
}

/// A call that is ready, with what becomes of its result.
struct Ready<D = Departure> {
    departure: D,
    wanted: Wanted,
    device: Option<Arc<KnownDevice>>,
}

impl Peer {
    pub(crate) fn new(core: Arc<Core>, client: Client, peer: RuntimePeer) -> Self {
        Self {
            core,
            client,
            peer,
            is_closed: AtomicBool::new(false),
            device: Arc::default(),
        }
    }

    fn check_open(&self, py: Python<'_>) -> PyResult<()> {
        self.core.check_open(py)?;
        match self.is_closed.load(Ordering::Relaxed) {
            true => Err(refused(py, Code::FailedPrecondition, "this is closed")),
            false => Ok(()),
        }
    }

    fn departure(
        &self,
        py: Python<'_>,
        request: Request,
        timeout: Option<Duration>,
        wanted: &Wanted,
    ) -> Departure {
        Departure {
            client: self.client.clone(),
            peer: self.peer.clone(),
            request,
            timeout,
            places: wanted.places(py),
            brings_memory: wanted.brings_memory(),
        }
    }

    fn graph(
        &self,
        py: Python<'_>,
        call: GraphCall,
        wanted: Wanted,
        timeout: Option<f64>,
    ) -> PyResult<Ready> {
        let timeout = timeout_of(py, timeout)?;
        let request = Request::StarRunGraph(Box::new(call));
        Ok(Ready {
            departure: self.departure(py, request, timeout, &wanted),
            wanted,
            device: None,
        })
    }

    /// Runs a call to its end, or lets it go on if there is a future for it.
    fn go<'py>(
        &self,
        py: Python<'py>,
        ready: Ready<impl Begin>,
        future: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Ready {
            departure,
            wanted,
            device,
        } = ready;
        match future {
            None => call::run(py, departure, &wanted, device.as_deref()),
            Some(future) => {
                let completions = self.core.completions();
                let pending: Py<Pending> =
                    call::submit(py, departure, wanted, device, completions, future)?;
                Ok(pending.into_bound(py).into_any())
            }
        }
    }

    fn first_device(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<(String, u64)> {
        if let Some(device) = self.device.get() {
            return Ok(device);
        }
        let device = self.status(py, timeout)?;
        self.device.set(device.clone());
        Ok(device)
    }
}

#[pymethods]
impl Peer {
    /// Calls a function with tensors by name.
    #[pyo3(signature = (function, feeds, fetch, timeout, out, access, future=None))]
    #[expect(
        clippy::too_many_arguments,
        reason = "one call of Python into the engine"
    )]
    fn call<'py>(
        &self,
        py: Python<'py>,
        function: Word,
        feeds: Option<&Bound<'py, PyAny>>,
        fetch: &Bound<'py, PyAny>,
        timeout: Option<f64>,
        out: Option<&Bound<'py, PyAny>>,
        access: bool,
        future: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.check_open(py)?;
        let wanted = Wanted::named(fetch, out, access_of(access))?;
        let feeds = feeds.map_or_else(|| Ok(Vec::new()), |feeds| tensors_of(feeds, false))?;
        let call = graph_call(py, &function.0, feeds, wanted.texts())?;
        let ready = self.graph(py, call, wanted, timeout)?;
        self.go(py, ready, future)
    }

    /// Fetches tensors from the store of the task.
    #[pyo3(signature = (names, timeout, out, access, future=None))]
    fn pull<'py>(
        &self,
        py: Python<'py>,
        names: &Bound<'py, PyAny>,
        timeout: Option<f64>,
        out: Option<&Bound<'py, PyAny>>,
        access: bool,
        future: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.call(
            py,
            Word(STORE_PULL.into()),
            None,
            names,
            timeout,
            out,
            access,
            future,
        )
    }

    /// Puts tensors into the store of the task.
    #[pyo3(signature = (name, value, timeout, future=None))]
    fn push<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'py, PyAny>,
        value: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
        future: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.check_open(py)?;
        let feeds = named_tensors(name, value, false)?;
        let wanted = Wanted::nothing();
        if is_large(&feeds) {
            let departure = LargePush {
                client: self.client.clone(),
                peer: self.peer.clone(),
                feeds,
                timeout: timeout_of(py, timeout)?,
            };
            let ready = Ready {
                departure,
                wanted,
                device: None,
            };
            return self.go(py, ready, future);
        }
        let call = graph_call(py, STORE_PUSH, feeds, Vec::new())?;
        let ready = self.graph(py, call, wanted, timeout)?;
        self.go(py, ready, future)
    }

    /// Puts a tensor into a step of the task.
    #[pyo3(signature = (key, value, step, timeout, future=None))]
    fn send<'py>(
        &self,
        py: Python<'py>,
        key: Word,
        value: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = argument::step)] step: i64,
        timeout: Option<f64>,
        future: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.check_open(py)?;
        let tensor = tensor_of(value, false).map_err(|error| naming(py, &key.0, error))?;
        let feeds = vec![(key.0, tensor)];
        let wanted = Wanted::nothing();
        let mut call = graph_call(py, SEND_FUNCTION, feeds, Vec::new())?;
        call.step_id = step.cast_unsigned();
        let ready = self.graph(py, call, wanted, timeout)?;
        self.go(py, ready, future)
    }

    /// Takes a tensor out of a step of the task.
    #[pyo3(signature = (key, step, timeout, out, future=None))]
    fn recv<'py>(
        &self,
        py: Python<'py>,
        key: Word,
        #[pyo3(from_py_with = argument::step)] step: i64,
        timeout: Option<f64>,
        out: Option<&Bound<'py, PyAny>>,
        future: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.check_open(py)?;
        let wanted = Wanted::one(out, Access::Writable)?;
        let limit = timeout_of(py, timeout)?;
        let (device, incarnation) = self.first_device(py, timeout)?;
        let key = rendezvous_key(py, (&device, incarnation), &key.0)?;
        let request = Request::RecvTensor { step_id: step, key };
        let ready = Ready {
            departure: self.departure(py, request, limit, &wanted),
            wanted,
            device: Some(Arc::clone(&self.device)),
        };
        self.go(py, ready, future)
    }

    /// Asks the task for the name and the incarnation of its first device.
    fn status(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<(String, u64)> {
        self.check_open(py)?;
        let request = Request::Message {
            method: Method::GetStatus,
            body: Buffer::new(),
        };
        let departure = self.departure(py, request, timeout_of(py, timeout)?, &Wanted::nothing());
        let arrived = checked(py, call::wait(py, departure)?)?;
        checked(py, first_device(&arrived.response))
    }

    /// Ends the use of the peer.
    fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }
}

fn first_device(response: &Response) -> Result<(String, u64), Status> {
    let unreadable = || {
        let text = "the GetStatus response of the peer cannot be read";
        Status::new(Code::DataLoss, text)
    };
    let Response::Message(body) = response else {
        return Err(unreadable());
    };
    let status = proto::GetStatusResponse::decode(&body[..]).map_err(|_| unreadable())?;
    let device = status.device_attributes.into_iter().next().ok_or_else(|| {
        let text = "the peer names no device, so nothing can be received from it";
        Status::new(Code::FailedPrecondition, text)
    })?;
    Ok((device.name, device.incarnation))
}

fn access_of(is_writable: bool) -> Access {
    match is_writable {
        true => Access::Writable,
        false => Access::Shared,
    }
}
