//! Functions that peers call: those in Python, and the one that takes what clients send.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use grpcxx_rpc::{Code, GraphCall, NamedTensors, Reason, Response, Status, Tensor, Text};
use grpcxx_runtime::{CallResult, Function, HoldWatch, Responder};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyString};

use crate::arrays::{Access, array_of, tensor_of};
use crate::engine::Core;
use crate::memory::attached;
use crate::request::{key_text, naming};
use crate::running::Run;
use crate::shard::on_shard;
use crate::status::of_exception;

/// The function by which a client puts a tensor into a step of a task in Python.
pub(crate) const SEND_FUNCTION: &str = "grpcxx.python.send";

/// A function in Python, and the names of the arrays that it takes.
pub(crate) struct PythonFunction {
    function: Py<PyAny>,
    /// For texts.
    name: Arc<str>,
    /// The names that it takes; `None`: any.
    accepted: Option<HashMap<Text, Py<PyString>>>,
    /// The names that it cannot do without.
    required: Vec<Text>,
    /// Says what is wrong with the names of a call.
    bind: Option<Py<PyAny>>,
    /// What looks how long it holds the shard, if it runs there.
    short: Option<HoldWatch>,
}

/// Takes what clients send into the step that they name.
pub(crate) struct SendFunction {
    core: Weak<Core>,
}

impl PythonFunction {
    pub(crate) fn new(
        py: Python<'_>,
        function: Py<PyAny>,
        accepted: Option<Vec<Py<PyString>>>,
        required: Vec<String>,
        bind: Option<Py<PyAny>>,
        short: Option<HoldWatch>,
    ) -> PyResult<Self> {
        let named = |name: Py<PyString>| {
            let text = Text::from(name.bind(py).to_cow()?.as_ref());
            Ok((text, name))
        };
        let accepted = accepted.map(|names| names.into_iter().map(named).collect::<PyResult<_>>());
        let name = function.bind(py).getattr("__name__");
        let name = name.map_or_else(|_| "the function".to_owned(), |name| name.to_string());
        Ok(Self {
            function,
            name: name.into(),
            accepted: accepted.transpose()?,
            required: required.into_iter().map(Text::from).collect(),
            bind,
            short,
        })
    }

    fn answer(&self, py: Python<'_>, call: GraphCall) -> CallResult {
        let GraphCall { feeds, fetches, .. } = call;
        let results = self
            .results(py, feeds.into_vec())
            .map_err(|failure| failure.into_status(py))?;
        let fetch = |name: Text| {
            let value = results.get(&name);
            let value = value
                .map_err(|error| status_of(py, &error))?
                .ok_or_else(|| {
                    let known = results.names().unwrap_or_default();
                    let function = &self.name;
                    Status::new(
                        Code::NotFound,
                        format!(
                            "{} returns {}, and not {}",
                            function.escape_debug(),
                            known.escape_debug(),
                            missing(&results, &fetches).escape_debug()
                        ),
                    )
                })?;
            let tensor = tensor_of(&value, false).map_err(|error| naming(py, &name, error));
            let tensor = tensor.map_err(|error| status_of(py, &error))?;
            Ok((name, tensor))
        };
        let fetched = fetches.iter().cloned().map(fetch);
        Ok(Response::Fetched(fetched.collect::<Result<_, Status>>()?))
    }

    fn results<'py>(
        &self,
        py: Python<'py>,
        feeds: Vec<(Text, Tensor)>,
    ) -> Result<Results<'py>, Failure> {
        let arrays = PyDict::new(py);
        let has_all = self
            .required
            .iter()
            .all(|name| feeds.iter().any(|(fed, _)| fed == name));
        let mut fits = has_all;
        for (name, tensor) in feeds {
            let known = self
                .accepted
                .as_ref()
                .and_then(|accepted| accepted.get(&name));
            fits &= known.is_some() || self.accepted.is_none();
            let array = array_of(py, tensor, Access::Shared)?;
            match known {
                Some(known) => arrays.set_item(known, array)?,
                None => arrays.set_item(name.as_str(), array)?,
            }
        }
        if !fits && let Some(bind) = &self.bind {
            bind.bind(py).call((), Some(&arrays)).map_err(|error| {
                let text = format!("{}: {}", self.name, error.value(py));
                Failure::Status(Status::new(Code::InvalidArgument, text))
            })?;
        }
        let returned = self.function.bind(py).call((), Some(&arrays))?;
        Ok(Results::of(returned))
    }
}

impl Function for PythonFunction {
    fn call(&self, _call: GraphCall) -> Result<NamedTensors, Status> {
        Err(Status::new(
            Code::Internal,
            "a function of Python answers through its responder only",
        ))
    }

    fn start(&self, call: GraphCall, responder: Responder) {
        let _run = Run::begin(&self.name);
        // The answer is on its way before the thread lets go of the interpreter.
        let mut request = Some((call, responder));
        let mut answer = || {
            attached(|py| {
                if let Some((call, responder)) = request.take() {
                    responder.answer(self.answer(py, call));
                }
            })
        };
        match &self.short {
            Some(watch) => watch.run(|| on_shard(answer)),
            None => answer(),
        };
        if let Some((_, responder)) = request {
            let status = Status::new(Code::Unavailable, "Python has ended");
            responder.answer(Err(status.because(Reason::Stopping)));
        }
    }

    fn may_block(&self) -> bool {
        self.short.is_none()
    }
}

/// What a function has returned: arrays by name, one array, or nothing.
enum Results<'py> {
    Nothing,
    One(Bound<'py, PyAny>),
    Dict(Bound<'py, PyDict>),
    Mapping(Bound<'py, PyMapping>),
}

impl<'py> Results<'py> {
    fn of(returned: Bound<'py, PyAny>) -> Self {
        if returned.is_none() {
            return Self::Nothing;
        }
        let returned = match returned.cast_into::<PyDict>() {
            Ok(dict) => return Self::Dict(dict),
            Err(other) => other.into_inner(),
        };
        match returned.cast_into::<PyMapping>() {
            Ok(mapping) => Self::Mapping(mapping),
            Err(other) => Self::One(other.into_inner()),
        }
    }

    fn get(&self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self {
            Self::Nothing => Ok(None),
            Self::One(value) => Ok((name == RESULT).then(|| value.clone())),
            Self::Dict(values) => values.get_item(name),
            Self::Mapping(values) => match values.contains(name)? {
                true => values.get_item(name).map(Some),
                false => Ok(None),
            },
        }
    }

    /// The names of all that was returned, for a text.
    fn names(&self) -> PyResult<String> {
        let names = match self {
            Self::Nothing => Vec::new(),
            Self::One(_) => vec![RESULT.to_owned()],
            Self::Dict(values) => texts(values.keys().iter()),
            Self::Mapping(values) => texts(values.keys()?.iter()),
        };
        match names.is_empty() {
            true => Ok("nothing".to_owned()),
            false => Ok(names.join(", ")),
        }
    }
}

fn texts<'py>(names: impl Iterator<Item = Bound<'py, PyAny>>) -> Vec<String> {
    names.map(|name| name.to_string()).collect()
}

fn missing(results: &Results<'_>, fetches: &[Text]) -> String {
    let is_missing = |name: &&Text| matches!(results.get(name), Ok(None));
    let missing: Vec<&str> = fetches
        .iter()
        .filter(is_missing)
        .map(Text::as_str)
        .collect();
    missing.join(", ")
}

/// Why a function gave no results.
enum Failure {
    Raised(PyErr),
    Status(Status),
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Raised(error)
    }
}

impl Failure {
    fn into_status(self, py: Python<'_>) -> Status {
        match self {
            Self::Raised(error) => status_of(py, &error),
            Self::Status(status) => status,
        }
    }
}

/// What the caller gets for an exception. Those that are not made for it are for the log of the
/// server too.
fn status_of(py: Python<'_>, error: &PyErr) -> Status {
    if let Some(status) = of_exception(py, error) {
        // Its reason is of what the function did, and not of this call.
        return status.because(Reason::Unspecified);
    }
    let told = py
        .import("grpcxx._status")
        .and_then(|status| status.call_method1("log_failure", (error.value(py),)));
    if let Err(failure) = told {
        tracing::warn!(%failure, "the exception of a function cannot be logged");
    }
    let kind = error.get_type(py).name();
    let kind = kind.map_or_else(|_| "an exception".to_owned(), |name| name.to_string());
    Status::new(Code::Unknown, format!("{kind}: {}", error.value(py)))
}

impl SendFunction {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        Self {
            core: Arc::downgrade(core),
        }
    }
}

impl Function for SendFunction {
    fn call(&self, call: GraphCall) -> Result<NamedTensors, Status> {
        let core = self.core.upgrade().ok_or_else(|| {
            Status::new(Code::Unavailable, "the engine has stopped").because(Reason::Stopping)
        })?;
        let (device, incarnation) = core.device();
        for (name, tensor) in call.feeds {
            // The tensors go on as they are, and never become arrays.
            let key = Text::from(key_text(device, incarnation, &name));
            core.with(|engine| engine.send(call.step_id.cast_signed(), key, tensor))?;
        }
        Ok(NamedTensors::new())
    }
}

/// The name under which a value is fetched that is no mapping.
const RESULT: &str = "result";
