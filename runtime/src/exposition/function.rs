//! The functions by which a task that listens tells its peers what it counts and waits for.

use std::sync::{Arc, PoisonError, RwLock, Weak};

use arc_swap::ArcSwap;
use grpcxx_memory::forks;
use grpcxx_rpc::{Code, GraphCall, NamedTensors, Reason, Shape, Status, Tensor, Text};

use super::{Exposition, ProgramPage};
use crate::function::Function;
use crate::registry::{Functions, SERVER_INSPECT};

/// Name of the function by which a task that listens tells its numbers. Fetches `text` (a scalar
/// string), which is in Prometheus' text format. Peers that are not grpcxx do not have it.
pub const SERVER_METRICS: &str = "grpcxx.server.metrics";

/// Tells something of the engine that has this function.
pub(crate) struct Telling {
    /// It has none of the functions, which hold this one.
    exposition: Exposition,
    functions: Weak<ArcSwap<Functions>>,
    program: Arc<RwLock<ProgramPage>>,
    what: What,
}

/// What a program adds to what its engine tells peers. Dropping it takes that away, and waits for
/// who tells it just now.
#[must_use]
pub struct ToldMore {
    program: Arc<RwLock<ProgramPage>>,
    /// In which process it was made.
    generation: u32,
}

struct What {
    function: &'static str,
    fetch: &'static str,
    tell: fn(&Exposition, &ProgramPage) -> String,
}

impl Telling {
    /// All that an engine tells, by the names of the functions.
    pub(crate) fn all(
        exposition: &Exposition,
        more: &ToldMore,
    ) -> [(&'static str, Arc<dyn Function>); 2] {
        let metrics = What {
            function: SERVER_METRICS,
            fetch: "text",
            tell: Exposition::text_with,
        };
        let inspect = What {
            function: SERVER_INSPECT,
            fetch: "json",
            tell: |exposition, program| exposition.waiting(program).to_string(),
        };
        [metrics, inspect].map(|what| {
            let name = what.function;
            let telling = Self {
                functions: Arc::downgrade(&exposition.functions),
                exposition: Exposition {
                    functions: Arc::default(),
                    ..exposition.clone()
                },
                program: Arc::clone(&more.program),
                what,
            };
            (name, Arc::new(telling) as Arc<dyn Function>)
        })
    }
}

impl Function for Telling {
    fn call(&self, call: GraphCall) -> Result<NamedTensors, Status> {
        let What {
            function,
            fetch,
            tell,
        } = self.what;
        if let Some(unknown) = call.fetches.iter().find(|asked| asked.as_str() != fetch) {
            let text = format!("{function} has no \"{unknown}\"; fetch {fetch}");
            return Err(Status::new(Code::InvalidArgument, text));
        }
        let stopping =
            || Status::new(Code::Unavailable, "this task is stopping").because(Reason::Stopping);
        let exposition = Exposition {
            functions: self.functions.upgrade().ok_or_else(stopping)?,
            ..self.exposition.clone()
        };
        let told = {
            let program = self.program.read().unwrap_or_else(PoisonError::into_inner);
            tell(&exposition, &program)
        };
        let tensor = Tensor::from_strings(Shape::SCALAR, [told.as_bytes()])?;
        Ok(NamedTensors::from_buf([(Text::from(fetch), tensor)]))
    }
}

impl ToldMore {
    pub(crate) fn new(program: ProgramPage) -> Self {
        Self {
            program: Arc::new(RwLock::new(program)),
            generation: forks::generation(),
        }
    }
}

impl Drop for ToldMore {
    fn drop(&mut self) {
        if self.generation != forks::generation() {
            // In a forked child, which has no thread that could end what another one has begun.
            return;
        }
        let mut program = self.program.write().unwrap_or_else(PoisonError::into_inner);
        *program = ProgramPage::default();
    }
}
