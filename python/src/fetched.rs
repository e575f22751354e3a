//! What a call asks for, and how what comes becomes its result.

use std::collections::HashMap;
use std::ops::Range;

use grpcxx_rpc::{Code, Response, Status, Tensor, Text};
use numpy::PyUntypedArray;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyString};

use crate::arrays::{Access, array_of, check_out, put};
use crate::flight::{Arrived, Places};
use crate::memory::{self, Place};
use crate::request::{name_of, text_of};
use crate::status::{checked, invalid};

/// The tensors that a call asks for, and what its result looks like.
pub(crate) struct Wanted {
    form: Form,
    access: Access,
    /// Empty for calls that get tensors without names.
    names: Vec<Name>,
    /// Arrays that the caller gave, by their place; empty if there are none.
    outs: Vec<Option<Py<PyUntypedArray>>>,
}

struct Name {
    key: Py<PyString>,
    text: Text,
}

/// What the result of a call is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Nothing,
    One,
    Named,
}

impl Wanted {
    /// No tensors at all.
    pub(crate) fn nothing() -> Self {
        Self {
            form: Form::Nothing,
            access: Access::Writable,
            names: Vec::new(),
            outs: Vec::new(),
        }
    }

    /// One tensor without a name.
    pub(crate) fn one(out: Option<&Bound<'_, PyAny>>, access: Access) -> PyResult<Self> {
        let outs = match out {
            Some(out) => vec![Some(check_out(out)?.unbind())],
            None => Vec::new(),
        };
        Ok(Self {
            form: Form::One,
            access,
            names: Vec::new(),
            outs,
        })
    }

    /// One name or several, and arrays for some of them.
    pub(crate) fn named(
        names: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        access: Access,
    ) -> PyResult<Self> {
        let (form, names) = match names.cast::<PyString>() {
            Ok(name) => (Form::One, vec![Name::of(name)?]),
            Err(_) => {
                let names = names.try_iter()?.map(|name| Name::of(name_of(&name?)?));
                (Form::Named, names.collect::<PyResult<Vec<_>>>()?)
            }
        };
        let mut wanted = Self {
            form,
            access,
            names,
            outs: Vec::new(),
        };
        if let Some(out) = out {
            wanted.outs = wanted.outs_of(out)?;
        }
        Ok(wanted)
    }

    fn outs_of(&self, out: &Bound<'_, PyAny>) -> PyResult<Vec<Option<Py<PyUntypedArray>>>> {
        let Ok(named) = out.cast::<PyMapping>() else {
            if self.form == Form::One {
                return Ok(vec![Some(check_out(out)?.unbind())]);
            }
            let text = "out must be a mapping of names to arrays where several names are asked for";
            return Err(invalid(out.py(), text));
        };
        let mut outs: Vec<_> = self.names.iter().map(|_| None).collect();
        let mut ranges = Vec::new();
        for pair in named.items()?.iter() {
            let (name, array): (Bound<'_, PyString>, Bound<'_, PyAny>) = pair.extract()?;
            let text = text_of(&name)?;
            let place = self.names.iter().position(|known| known.text == text);
            match place {
                Some(place) => {
                    let array = check_out(&array)?;
                    ranges.push((memory::range_of(&array), name.clone()));
                    outs[place] = Some(array.unbind());
                }
                None => {
                    let text = format!("out has memory for {text}, which is not asked for");
                    return Err(invalid(out.py(), text));
                }
            }
        }
        check_apart(out.py(), ranges)?;
        Ok(outs)
    }

    /// The names to ask for.
    pub(crate) fn texts(&self) -> Vec<Text> {
        self.names.iter().map(|name| name.text.clone()).collect()
    }

    /// Where the tensors may land.
    pub(crate) fn places(&self, py: Python<'_>) -> Places {
        let places = self.outs.iter().map(|out| {
            let out = out.as_ref()?.bind(py);
            Place::of(out, memory::bytes_of(out))
        });
        places.collect()
    }

    /// Whether large tensors shall have memory that is theirs alone. Of many tensors the small ones
    /// come faster without.
    pub(crate) fn brings_memory(&self) -> bool {
        let tensors = self.names.len().max(1);
        self.form != Form::Nothing && self.access == Access::Writable && tensors <= ALONE_MAX
    }

    /// The result of the call.
    pub(crate) fn result<'py>(
        &self,
        py: Python<'py>,
        arrived: Arrived,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Arrived { response, landed } = arrived;
        if self.form == Form::Nothing {
            return Ok(py.None().into_bound(py));
        }
        let tensors = checked(py, self.in_order(response, &landed))?;
        let arrays = tensors.into_iter().enumerate().map(|(place, tensor)| {
            match self.outs.get(place).and_then(Option::as_ref) {
                Some(out) => {
                    let out = out.bind(py);
                    put(&tensor, landed.contains(&place), out)?;
                    Ok(out.clone().into_any())
                }
                None => array_of(py, tensor, self.access),
            }
        });
        match self.form {
            Form::Nothing | Form::One => {
                let mut arrays = arrays;
                arrays.next().unwrap_or_else(|| {
                    let status =
                        Status::new(Code::Internal, "the answer of the peer has no tensor");
                    checked(py, Err(status))
                })
            }
            Form::Named => {
                let result = PyDict::new(py);
                for (name, array) in self.names.iter().zip(arrays) {
                    result.set_item(&name.key, array?)?;
                }
                Ok(result.into_any())
            }
        }
    }

    /// The tensors in the order in which they were asked for.
    fn in_order(&self, response: Response, landed: &[usize]) -> Result<Vec<Tensor>, Status> {
        let fetched = match response {
            Response::Tensors(tensors) => return Ok(tensors.into_vec()),
            Response::Message(_) | Response::Unary(_) => return Ok(Vec::new()),
            Response::Fetched(fetched) => fetched,
        };
        let names = || self.names.iter().map(|name| &name.text);
        let is_ordered = names().eq(fetched.iter().map(|(name, _)| name));
        if is_ordered {
            return Ok(fetched.into_iter().map(|(_, tensor)| tensor).collect());
        }
        if !landed.is_empty() {
            let text = "the answer of the peer has its tensors in another order than the call";
            return Err(Status::new(Code::DataLoss, text));
        }
        let mut by_name: HashMap<Text, Tensor> = fetched.into_iter().collect();
        let take = |name| {
            by_name.remove(name).ok_or_else(|| {
                let text = format!("the answer of the peer lacks the tensor \"{name}\"");
                Status::new(Code::Internal, text)
            })
        };
        names().map(take).collect()
    }
}

/// Refuses arrays that share bytes: each would have some of what came for the other.
fn check_apart(
    py: Python<'_>,
    mut ranges: Vec<(Range<usize>, Bound<'_, PyString>)>,
) -> PyResult<()> {
    ranges.retain(|(range, _)| !range.is_empty());
    ranges.sort_unstable_by_key(|(range, _)| range.start);
    let overlapping = ranges
        .windows(2)
        .find(|pair| pair[1].0.start < pair[0].0.end);
    let Some([(_, first), (_, second)]) = overlapping else {
        return Ok(());
    };
    let text = format!("out has the same memory for {first} and {second}; give each its own array");
    Err(invalid(py, text))
}

impl Name {
    fn of(name: &Bound<'_, PyString>) -> PyResult<Self> {
        Ok(Self {
            text: text_of(name)?,
            key: name.clone().unbind(),
        })
    }
}

/// Most tensors of a call that have memory of their own.
const ALONE_MAX: usize = 16;
