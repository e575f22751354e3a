//! The store and the steps of a task of this process.

use grpcxx_rpc::{Request, Tensor};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::argument::{self, Word};
use crate::arrays::{Access, array_of, tensor_of};
use crate::call;
use crate::dtypes::dtype_name;
use crate::engine::Engine;
use crate::fetched::Wanted;
use crate::flight::Departure;
use crate::request::{name_of, named_tensors, naming, rendezvous_key, text_of, timeout_of};
use crate::status::checked;

#[pymethods]
impl Engine {
    /// Puts tensors into the store, all or none.
    fn store_put(
        &self,
        py: Python<'_>,
        name: &Bound<'_, PyAny>,
        value: Option<&Bound<'_, PyAny>>,
        copy: bool,
    ) -> PyResult<()> {
        self.core().check_open(py)?;
        let tensors = named_tensors(name, value, copy)?;
        let put = self.core().with(|engine| engine.store_put(tensors));
        checked(py, put)
    }

    /// Arrays over the memory of the store: one for one name, a dict for several.
    fn store_fetch<'py>(
        &self,
        py: Python<'py>,
        names: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.core().check_open(py)?;
        if let Ok(name) = names.cast::<PyString>() {
            let name = text_of(name)?;
            let tensor = self.core().with(|engine| engine.store_fetch(&name));
            return array_of(py, checked(py, tensor)?, Access::Shared);
        }
        let names = names.try_iter()?.map(|name| text_of(name_of(&name?)?));
        let names = names.collect::<PyResult<Vec<_>>>()?;
        let tensors = self.core().with(|engine| engine.store_fetch_all(&names));
        let arrays = PyDict::new(py);
        for (name, tensor) in names.iter().zip(checked(py, tensors)?) {
            arrays.set_item(name.as_str(), array_of(py, tensor, Access::Shared)?)?;
        }
        Ok(arrays.into_any())
    }

    /// Takes tensors out of the store.
    fn store_remove(&self, py: Python<'_>, names: Vec<Bound<'_, PyString>>) -> PyResult<()> {
        self.core().check_open(py)?;
        let names = names.iter().map(text_of).collect::<PyResult<Vec<_>>>()?;
        let removed = self.core().with(|engine| {
            engine.store_remove(&names);
            Ok(())
        });
        checked(py, removed)
    }

    /// Type, shape and bytes of all that is in the store, by name.
    #[expect(
        clippy::type_complexity,
        reason = "lines of a list, as Python gets them"
    )]
    fn store_list(&self, py: Python<'_>) -> PyResult<Vec<(String, &'static str, Vec<u64>, usize)>> {
        self.core().check_open(py)?;
        let stored = checked(py, self.core().with(|engine| Ok(engine.stored())))?;
        let line = |(name, tensor): (grpcxx_rpc::Text, Tensor)| {
            let number = i32::from(tensor.dtype.number());
            let dtype = dtype_name(number).unwrap_or(tensor.dtype.name());
            (
                name.as_str().to_owned(),
                dtype,
                tensor.shape.dims().to_vec(),
                tensor.data.len(),
            )
        };
        Ok(stored.into_iter().map(line).collect())
    }

    /// Puts a tensor into a step.
    fn send(
        &self,
        py: Python<'_>,
        key: Word,
        value: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = argument::step)] step: i64,
        copy: bool,
    ) -> PyResult<()> {
        self.core().check_open(py)?;
        let tensor = tensor_of(value, copy).map_err(|error| naming(py, &key.0, error))?;
        let key = rendezvous_key(py, self.core().device(), &key.0)?;
        checked(
            py,
            self.core().with(|engine| engine.send(step, key, tensor)),
        )
    }

    /// Takes a tensor out of a step.
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
        self.core().check_open(py)?;
        // Its sender may go on with the memory of what it sent.
        let wanted = Wanted::one(out, Access::Writable)?;
        let key = rendezvous_key(py, self.core().device(), &key.0)?;
        let timeout = timeout_of(py, timeout)?;
        let peer = checked(py, self.core().with(|engine| Ok(engine.own_peer(step))))?;
        let departure = Departure {
            client: self.core().client().clone(),
            peer,
            request: Request::FuseRecvTensor {
                step_id: step,
                keys: [key].into_iter().collect(),
            },
            timeout,
            places: wanted.places(py),
            brings_memory: false,
        };
        match future {
            None => call::run(py, departure, &wanted, None),
            Some(future) => {
                let completions = self.core().completions();
                let pending = call::submit(py, departure, wanted, None, completions, future)?;
                Ok(pending.into_bound(py).into_any())
            }
        }
    }
}
