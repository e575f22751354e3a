//! Groups of tasks: operations on the arrays of all ranks.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use grpcxx_capi::group::handle_of;
use grpcxx_collectives::{Group as RuntimeGroup, Operation, Operator, ReduceOp};
use grpcxx_memory::BufferMut;
use grpcxx_rpc::{Code, DType, Status, Tensor};
use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::argument;
use crate::arrays::{Access, array_of, check_out, put, tensor_of, without_data};
use crate::claims::{Claim, Claims};
use crate::completions::Report;
use crate::engine::Core;
use crate::lock::lock;
use crate::memory::{self, Place};
use crate::pool::for_array;
use crate::request::{naming, timeout_of};
use crate::shard::may_wait;
use crate::status::{checked, error, invalid, refused};
use crate::waits::{WAIT_SLICE, run_elsewhere};

/// One rank of a group.
#[pyclass(frozen, module = "grpcxx._native")]
pub(crate) struct Group {
    core: Arc<Core>,
    group: Mutex<Option<RuntimeGroup>>,
    claims: Claims,
}

/// An operation that goes on. The thread that ends futures asks for its result.
#[pyclass(frozen, module = "grpcxx._native")]
pub(crate) struct PendingOperation {
    future: Mutex<Option<Py<PyAny>>>,
    waker: Waker,
    state: Mutex<Option<Running>>,
    /// The result, if it was there at once.
    result: Mutex<Option<Outcome>>,
}

type Outcome = Result<Option<Tensor>, Status>;

/// An operation and the place of its result.
struct Running {
    operation: Operation<Option<Tensor>>,
    out: Option<Py<PyUntypedArray>>,
    has_place: bool,
    /// Of a future.
    claim: Option<Claim>,
}

/// What a group is made of.
pub(crate) struct Wanted<'a> {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) rendezvous: &'a str,
    pub(crate) name: &'a str,
    pub(crate) address: Option<String>,
    pub(crate) generation: u64,
    pub(crate) timeout: f64,
    pub(crate) join_timeout: f64,
}

impl Wake for Report {
    fn wake(self: Arc<Self>) {
        self.tell();
    }
}

impl Group {
    /// Meets the other ranks, without the interpreter. Ctrl-C ends the wait.
    pub(crate) fn join(py: Python<'_>, core: &Arc<Core>, wanted: Wanted<'_>) -> PyResult<Self> {
        let bound = |seconds| -> PyResult<Duration> {
            let bound = timeout_of(py, Some(seconds))?;
            Ok(bound.unwrap_or(Duration::MAX))
        };
        let mut builder = RuntimeGroup::builder(wanted.rank, wanted.size, wanted.rendezvous)
            .name(wanted.name)
            .generation(wanted.generation)
            .timeout(bound(wanted.timeout)?)
            .join_timeout(bound(wanted.join_timeout)?);
        if let Some(address) = wanted.address {
            builder = builder.address(address);
        }
        checked(py, may_wait())?;
        // Names may be looked up.
        let joining = py.detach(|| core.with(|engine| builder.begin(engine)));
        let joining = checked(py, joining)?;
        let names = ("grpcxx-join", "the wait for other ranks");
        let group = run_elsewhere(py, names, move || joining.wait())?;
        Ok(Self {
            core: Arc::clone(core),
            group: Mutex::new(Some(group)),
            claims: Claims::default(),
        })
    }

    /// Refuses arrays that an operation under way still writes.
    fn check_claims(
        &self,
        tag: u16,
        (array, tensor): (&Bound<'_, PyAny>, &Tensor),
        out: Option<&Bound<'_, PyUntypedArray>>,
    ) -> PyResult<()> {
        let refuse = |what: &str| {
            let text = format!(
                "{what} is the result of an operation that has not ended: wait for that first"
            );
            Err(invalid(array.py(), text))
        };
        if let Ok(read) = array.cast::<PyUntypedArray>() {
            let is_copied = !memory::overlaps(read, &tensor.data)
                || out.is_some_and(|out| memory::overlaps(out, &tensor.data));
            if self.claims.is_written(tag, read, is_copied)? {
                return refuse("array");
            }
        }
        match out {
            Some(out) if self.claims.is_written(tag, out, false)? => refuse("out"),
            _ => Ok(()),
        }
    }

    fn open(&self, py: Python<'_>) -> PyResult<RuntimeGroup> {
        self.core.check_open(py)?;
        let group = lock(&self.group).clone();
        group.ok_or_else(|| {
            let text = "this rank has left the group";
            refused(py, Code::FailedPrecondition, text)
        })
    }
}

#[pymethods]
impl Group {
    /// Does something with the arrays of all ranks. Without `future` it waits for the result. What
    /// can be wrong with an argument is found where this takes the place of the operation; without
    /// a tag that is one there is no such place.
    #[expect(
        clippy::too_many_arguments,
        reason = "one call of Python into the engine"
    )]
    fn run<'py>(
        &self,
        py: Python<'py>,
        kind: &str,
        array: &Bound<'py, PyAny>,
        op: &Bound<'py, PyAny>,
        root: &Bound<'py, PyAny>,
        tag: u16,
        out: Option<&Bound<'py, PyAny>>,
        future: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let group = self.open(py)?.with_tag(tag);
        if future.is_none() {
            checked(py, may_wait())?;
        }
        let prepared = || {
            let (op, root) = (argument::op(op)?, argument::root(root)?);
            let operator = checked(py, operator(kind, op, root))?;
            let out = out.map(check_out).transpose()?;
            let tensor = numbers_of("array", array, false)?;
            self.check_claims(tag, (array, &tensor), out.as_ref())?;
            let tensor = brought(tensor, array, out.as_ref())?;
            let (output, has_place) = output(py, &group, operator, &tensor, out.as_ref())?;
            // Last: code of the program, which may close the group, is behind.
            let report = future.as_ref().map(|_| self.core.completions().report());
            let report = checked(py, report.transpose())?;
            Ok((operator, tensor, out, output, has_place, report))
        };
        let prepared: PyResult<_> = prepared();
        let (operator, tensor, out, output, has_place, report) =
            prepared.inspect_err(|_| py.detach(|| group.refuse()))?;
        let is_own = matches!(operator, Operator::Broadcast { root } if root == group.rank());
        let writes = future.is_some() && (has_place || is_own);
        let claim = out
            .as_ref()
            .filter(|_| writes)
            .map(|out| self.claims.claim(tag, out));
        let operation = py.detach(|| group.run(operator, tensor, output));
        let running = Running {
            operation,
            out: out.map(Bound::unbind),
            has_place,
            claim,
        };
        match future.zip(report) {
            None => wait(py, running, |out| self.claims.claim(tag, out)),
            Some(reported) => submit(py, &self.core, running, reported),
        }
    }

    /// Combines arrays one by one, of whatever can be iterated; small ones travel together.
    fn all_reduce_many<'py>(
        &self,
        py: Python<'py>,
        arrays: &Bound<'py, PyAny>,
        op: &Bound<'py, PyAny>,
        tag: u16,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let group = self.open(py)?.with_tag(tag);
        checked(py, may_wait())?;
        let prepared = || {
            let op = argument::op(op)?;
            let arrays = arrays.try_iter()?.collect::<PyResult<Vec<_>>>()?;
            let numbered = arrays.iter().enumerate();
            let tensors: PyResult<Vec<Tensor>> = numbered
                .map(|(index, array)| numbers_of(&format!("arrays[{index}]"), array, false))
                .collect();
            Ok((op, tensors?))
        };
        let prepared: PyResult<_> = prepared();
        let (op, tensors) = prepared.inspect_err(|_| py.detach(|| group.refuse()))?;
        let begun = py.detach(|| group.all_reduce_many(tensors, op));
        let mut begun = checked(py, begun)?;
        let results = in_slices(py, |slice| begun.wait_timeout(slice))?;
        let results = checked(py, results)?.into_iter();
        results
            .map(|tensor| array_of(py, tensor, Access::Writable))
            .collect()
    }

    /// Takes the place of an operation that cannot begin here.
    fn refuse(&self, py: Python<'_>, tag: u16) -> PyResult<()> {
        let group = self.open(py)?.with_tag(tag);
        py.detach(|| group.refuse());
        Ok(())
    }

    /// Raises why the group is over, if it is.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let failure = self.open(py)?.failure();
        failure.map_or(Ok(()), |status| Err(error(py, &status)))
    }

    /// A handle of the C interface, which the plugin of TensorFlow takes over.
    fn c_handle(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(handle_of(&self.open(py)?))
    }

    /// Leaves the group, once the others have what this rank has sent. Ctrl-C ends the wait alone.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        if self.core.is_inherited() {
            return Ok(());
        }
        let Some(group) = lock(&self.group).take() else {
            return Ok(());
        };
        checked(py, may_wait())?;
        let names = ("grpcxx-leave", "the wait for other ranks");
        run_elsewhere(py, names, move || group.leave())
    }
}

#[pymethods]
impl PendingOperation {
    /// What Python gave to know the operation by, once.
    fn take_future(&self) -> Option<Py<PyAny>> {
        lock(&self.future).take()
    }

    /// Whether it can be withdrawn: it goes on, for the other ranks wait for this one.
    #[getter]
    fn is_withdrawable(&self) -> bool {
        false
    }

    /// The result of the operation, once, when it has ended.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(mut running) = lock(&self.state).take() else {
            return Ok(None);
        };
        let result = match lock(&self.result).take() {
            Some(result) => Poll::Ready(result),
            None => {
                let mut context = Context::from_waker(&self.waker);
                Pin::new(&mut running.operation).poll(&mut context)
            }
        };
        match result {
            Poll::Ready(result) => ended(py, result, running.out, running.has_place).map(Some),
            Poll::Pending => {
                *lock(&self.state) = Some(running);
                Ok(None)
            }
        }
    }
}

/// Waits for the end of an operation, without the interpreter. Ctrl-C ends the wait alone: what the
/// operation still writes stays claimed.
fn wait<'py>(
    py: Python<'py>,
    running: Running,
    claim: impl FnOnce(&Bound<'py, PyUntypedArray>) -> Claim,
) -> PyResult<Bound<'py, PyAny>> {
    let Running {
        mut operation,
        out,
        has_place,
        claim: _,
    } = running;
    match in_slices(py, |slice| operation.wait_timeout(slice)) {
        Ok(result) => ended(py, result, out, has_place),
        Err(interrupt) => {
            if let Some(out) = out.filter(|_| has_place) {
                Unawaited::keep(operation, claim(out.bind(py)));
            }
            Err(interrupt)
        }
    }
}

/// An operation for whose end nobody waits any more.
struct Unawaited(Mutex<Option<Operation<Option<Tensor>>>>);

impl Unawaited {
    /// Keeps the operation and what it writes until it has ended.
    fn keep(operation: Operation<Option<Tensor>>, claim: Claim) {
        let kept = Arc::new(Self(Mutex::new(Some(operation))));
        let waker = claim.until_woken(Waker::from(Arc::clone(&kept)));
        let mut operation = lock(&kept.0);
        let polled = (operation.as_mut())
            .map(|operation| Pin::new(operation).poll(&mut Context::from_waker(&waker)));
        if let Some(Poll::Ready(_)) = polled {
            operation.take();
        }
    }
}

impl Wake for Unawaited {
    fn wake(self: Arc<Self>) {
        drop(lock(&self.0).take());
    }
}

/// Waits without the interpreter until `wait` has something, and hears signals meanwhile.
fn in_slices<T: Send>(
    py: Python<'_>,
    mut wait: impl FnMut(Duration) -> Option<T> + Send,
) -> PyResult<T> {
    loop {
        match py.detach(|| wait(WAIT_SLICE)) {
            Some(result) => return Ok(result),
            None => py.check_signals()?,
        }
    }
}

/// Begins an operation of which the completions shall hear.
fn submit<'py>(
    py: Python<'py>,
    core: &Core,
    mut running: Running,
    (future, report): (Py<PyAny>, Arc<Report>),
) -> PyResult<Bound<'py, PyAny>> {
    let waker = Waker::from(Arc::clone(&report));
    // Else the thread that ends futures writes the result, when it comes to that.
    let lands = running.claim.take_if(|_| running.has_place);
    let waker = match lands {
        Some(claim) => claim.until_woken(waker),
        None => waker,
    };
    let pending = PendingOperation {
        future: Mutex::new(Some(future)),
        waker,
        state: Mutex::new(Some(running)),
        result: Mutex::new(None),
    };
    let pending = Bound::new(py, pending)?;
    core.completions()
        .keep(&report, pending.clone().into_any().unbind());
    pending.get().begin();
    Ok(pending.into_any())
}

impl PendingOperation {
    /// From now on the completions hear of its end.
    fn begin(&self) {
        let mut state = lock(&self.state);
        let mut context = Context::from_waker(&self.waker);
        let polled =
            (state.as_mut()).map(|running| Pin::new(&mut running.operation).poll(&mut context));
        if let Some(Poll::Ready(result)) = polled {
            *lock(&self.result) = Some(result);
            self.waker.wake_by_ref();
        }
    }
}

/// The result as Python has it.
fn ended<'py>(
    py: Python<'py>,
    result: Outcome,
    out: Option<Py<PyUntypedArray>>,
    has_place: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let Some(mut tensor) = checked(py, result)? else {
        return Ok(py.None().into_bound(py));
    };
    let Some(out) = out else {
        return array_of(py, tensor, Access::Writable);
    };
    let out = out.into_bound(py);
    if has_place {
        without_data(&mut tensor);
    }
    put(&tensor, has_place, &out)?;
    Ok(out.into_any())
}

/// The array that this rank brings; a copy if the result overwrites it.
fn brought(
    tensor: Tensor,
    array: &Bound<'_, PyAny>,
    out: Option<&Bound<'_, PyUntypedArray>>,
) -> PyResult<Tensor> {
    let is_same = out.is_some_and(|out| memory::overlaps(out, &tensor.data));
    match is_same {
        true => numbers_of("array", array, true),
        false => Ok(tensor),
    }
}

/// The tensor of an array of numbers, whose name stands in the error if it is none.
fn numbers_of(name: &str, array: &Bound<'_, PyAny>, must_copy: bool) -> PyResult<Tensor> {
    let py = array.py();
    let tensor = tensor_of(array, must_copy).map_err(|error| naming(py, name, error))?;
    if tensor.dtype == DType::String {
        let text = format!("{name}: groups take numbers, and this is an array of strings");
        return Err(invalid(py, text));
    }
    Ok(tensor)
}

/// Memory for the result, and whether it is that of `out`.
fn output(
    py: Python<'_>,
    group: &RuntimeGroup,
    operator: Operator,
    tensor: &Tensor,
    out: Option<&Bound<'_, PyUntypedArray>>,
) -> PyResult<(Option<BufferMut>, bool)> {
    let Some((shape, bytes)) = checked(py, group.output(operator, tensor))? else {
        return Ok((None, false));
    };
    let Some(out) = out else {
        return Ok((for_array(bytes), false));
    };
    let out_bytes = memory::bytes_of(out);
    if out_bytes as u64 != bytes {
        let text = format!(
            "out is an array of {} and shape {:?}, but {} and shape {shape} come",
            out.dtype().str()?,
            out.shape(),
            tensor.dtype
        );
        return Err(invalid(py, text));
    }
    let place = Place::of(out, out_bytes).and_then(|place| place.take(()));
    let has_place = place.is_some();
    Ok((place, has_place))
}

fn operator(kind: &str, op: ReduceOp, root: u32) -> Result<Operator, Status> {
    Ok(match kind {
        "all_reduce" => Operator::AllReduce(op),
        "reduce_scatter" => Operator::ReduceScatter(op),
        "all_gather" => Operator::AllGather,
        "broadcast" => Operator::Broadcast { root },
        "reduce" => Operator::Reduce { op, root },
        "gather" => Operator::Gather { root },
        "scatter" => Operator::Scatter { root },
        "all_to_all" => Operator::AllToAll,
        "barrier" => Operator::Barrier,
        other => {
            let text = format!("there is no operation {other:?}");
            return Err(Status::new(Code::InvalidArgument, text));
        }
    })
}
