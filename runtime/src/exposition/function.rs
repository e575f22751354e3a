//! The functions by which a task that listens tells its peers what it is, counts and waits for.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use arc_swap::ArcSwap;
use grpcxx_memory::forks;
use grpcxx_rpc::{Code, GraphCall, NamedTensors, Reason, Shape, Status, Tensor, Text};

use super::{Exposition, ProgramPage, info, latencies};
use crate::engine::StartReport;
use crate::function::{Function, Responder, answer_once, caught};
use crate::registry::{Functions, SERVER_INSPECT};

/// Name of the function by which a task that listens tells its numbers. Fetches `text` (a scalar
/// string), which is in Prometheus' text format. Peers that are not grpcxx do not have it.
pub const SERVER_METRICS: &str = "grpcxx.server.metrics";

/// Tells something of the engine that has this function, on a thread of its own: functions of the
/// program may hold all threads of the compute pool.
pub(crate) struct Telling(Arc<Source>);

struct Source {
    /// It has none of the functions, which hold this one.
    exposition: Exposition,
    functions: Weak<ArcSwap<Functions>>,
    program: Arc<RwLock<ProgramPage>>,
    what: What,
    /// Threads that tell.
    threads: AtomicUsize,
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
    fetches: &'static [&'static str],
    tell: Tell,
}

/// Makes a tensor for each fetch, in their order.
type Tell = Box<dyn Fn(&Exposition, &ProgramPage) -> Result<Vec<Tensor>, Status> + Send + Sync>;

impl Telling {
    /// All that an engine tells, by the names of the functions.
    pub(crate) fn all(
        exposition: &Exposition,
        report: &StartReport,
        more: &ToldMore,
    ) -> [(&'static str, Arc<dyn Function>); 4] {
        let text = |text: String| {
            Ok(vec![Tensor::from_strings(
                Shape::SCALAR,
                [text.as_bytes()],
            )?])
        };
        let report = report.clone();
        let info = What {
            function: info::SERVER_INFO,
            fetches: info::INFO_FETCHES,
            tell: Box::new(move |_, _| info::tensors(&report)),
        };
        let latencies = What {
            function: latencies::SERVER_LATENCIES,
            fetches: latencies::LATENCY_FETCHES,
            tell: Box::new(|exposition, _| latencies::tensors(&exposition.client)),
        };
        let metrics = What {
            function: SERVER_METRICS,
            fetches: &["text"],
            tell: Box::new(move |exposition, program| text(exposition.text_with(program))),
        };
        let inspect = What {
            function: SERVER_INSPECT,
            fetches: &["json"],
            tell: Box::new(move |exposition, program| {
                text(exposition.waiting(program).to_string())
            }),
        };
        [info, latencies, metrics, inspect].map(|what| {
            let name = what.function;
            let source = Source {
                functions: Arc::downgrade(&exposition.functions),
                exposition: Exposition {
                    functions: Arc::default(),
                    ..exposition.clone()
                },
                program: Arc::clone(&more.program),
                what,
                threads: AtomicUsize::new(0),
            };
            let telling = Self(Arc::new(source));
            (name, Arc::new(telling) as Arc<dyn Function>)
        })
    }
}

impl Function for Telling {
    fn call(&self, call: GraphCall) -> Result<NamedTensors, Status> {
        self.0.tell(&call)
    }

    fn start(&self, call: GraphCall, responder: Responder) {
        let source = Arc::clone(&self.0);
        if source.threads.fetch_add(1, Ordering::Relaxed) >= THREADS_MAX {
            source.threads.fetch_sub(1, Ordering::Relaxed);
            let text = format!("{THREADS_MAX} others ask for this just now; try again");
            let status = Status::new(Code::ResourceExhausted, text);
            return responder.answer(Err(status.because(Reason::QueueFull)));
        }
        // A thread that does not begin drops what it was to run, and the call needs an answer.
        let responder = Arc::new(Mutex::new(Some(responder)));
        let (taken, teller) = (Arc::clone(&responder), Arc::clone(&source));
        let thread = std::thread::Builder::new().name("grpcxx-told".to_owned());
        let begun = thread.spawn(move || {
            let result = caught(|| teller.tell(&call));
            teller.threads.fetch_sub(1, Ordering::Relaxed);
            answer_once(&taken, result);
        });
        if let Err(error) = begun {
            source.threads.fetch_sub(1, Ordering::Relaxed);
            let text = format!("no thread can begin: {error}");
            answer_once(&responder, Err(Status::new(Code::ResourceExhausted, text)));
        }
    }

    fn may_block(&self) -> bool {
        false
    }

    fn runs_anywhere(&self) -> bool {
        true
    }
}

impl Source {
    fn tell(&self, call: &GraphCall) -> Result<NamedTensors, Status> {
        let What {
            function, fetches, ..
        } = self.what;
        let place = |asked: &Text| {
            let place = fetches.iter().position(|fetch| *fetch == asked.as_str());
            place.ok_or_else(|| {
                let known = fetches.join(", ");
                let text = format!("{function} has no \"{asked}\"; fetch {known}");
                Status::new(Code::InvalidArgument, text)
            })
        };
        let places = call.fetches.iter().map(place);
        let places = places.collect::<Result<Vec<_>, _>>()?;
        let stopping =
            || Status::new(Code::Unavailable, "this task is stopping").because(Reason::Stopping);
        let exposition = Exposition {
            functions: self.functions.upgrade().ok_or_else(stopping)?,
            ..self.exposition.clone()
        };
        let told = {
            let program = self.program.read().unwrap_or_else(PoisonError::into_inner);
            (self.what.tell)(&exposition, &program)?
        };
        let fetched = call.fetches.iter().zip(places);
        Ok(fetched
            .map(|(fetch, place)| (fetch.clone(), told[place].clone()))
            .collect())
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

/// Most threads that tell one thing at once.
const THREADS_MAX: usize = 4;
