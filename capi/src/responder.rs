#![expect(unsafe_code, reason = "exported functions over pointers")]
//! `grpcxx_responder`.

use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, ThreadId};

use grpcxx_memory::Buffer;
use grpcxx_rpc::{Code, Reason, Request, Response, Status, Tensor};
use grpcxx_runtime::{CallResult, RequestWatch, Responder};
use smallvec::SmallVec;

use crate::boundary::{Owned, bytes, guarded, uncancelled};
use crate::notices::{calling_back, later};
use crate::request::CRequest;
use crate::status::status_of;
use crate::tensor::{CTensor, Foreign, tensors_of};

/// The duty to answer a request, as C holds it, and what the engine tells about the request.
pub(crate) struct CResponder {
    is_withdrawn: AtomicBool,
    state: Mutex<State>,
    this: Weak<Self>,
}

#[derive(Default)]
struct State {
    request: Option<Arc<CRequest>>,
    responder: Option<Responder>,
    /// Whether the engine tells what becomes of the request.
    is_watched: bool,
    /// Whether the hook is called elsewhere: the shard may be turned by a thread of the program,
    /// which may hold what the hook wants.
    is_told_elsewhere: bool,
    /// The thread on which the service is running, whose answer need not take the way of the
    /// others.
    serving: Option<ThreadId>,
    answer: Option<CallResult>,
    hook: Option<Arc<Hook>>,
    /// Memory of C in the answer that is on its way.
    carried: SmallVec<[Arc<Foreign>; 1]>,
}

/// What C wants to have called when the request is withdrawn.
struct Hook {
    withdrawn: extern "C" fn(*mut c_void),
    context: Owned,
}

/// What a service did with a request.
#[expect(
    clippy::large_enum_variant,
    reason = "it lives for one call on the stack"
)]
pub(crate) enum Verdict {
    Answered(Responder, CallResult),
    Later,
    Declined,
}

impl CResponder {
    pub(crate) fn new(request: Arc<CRequest>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            is_withdrawn: AtomicBool::new(false),
            state: Mutex::new(State {
                request: Some(request),
                ..State::default()
            }),
            this: Weak::clone(this),
        })
    }

    /// Gets ready for a service that is about to run on this thread, and watches its request.
    pub(crate) fn arm(&self, responder: Responder) {
        let mut state = self.state();
        state.responder = Some(responder);
        state.is_watched = true;
        state.serving = Some(thread::current().id());
    }

    /// Gets ready for code that answers on whatever thread.
    pub(crate) fn arm_for_later(&self, responder: Responder) {
        let mut state = self.state();
        state.responder = Some(responder);
        state.is_told_elsewhere = true;
    }

    /// What lets the engine tell what becomes of the request, once somebody wants to know: most
    /// functions never do, and each would cost its shard a command.
    fn watching(&self, state: &mut State) -> Option<impl FnOnce() + use<>> {
        if state.is_watched {
            return None;
        }
        let watching = state.responder.as_ref()?.watching(self.this.upgrade()?);
        state.is_watched = true;
        Some(watching)
    }

    fn is_cancelled(&self) -> bool {
        let watching = self.watching(&mut self.state());
        if let Some(watch) = watching {
            watch();
        }
        self.is_withdrawn.load(Ordering::SeqCst)
    }

    /// What became of the request while the service ran.
    pub(crate) fn settle(&self, was_taken: bool) -> Verdict {
        let mut state = self.state();
        state.serving = None;
        match (state.responder.take(), state.answer.take()) {
            (Some(responder), Some(result)) => Verdict::Answered(responder, result),
            (Some(responder), None) if was_taken => {
                state.responder = Some(responder);
                Verdict::Later
            }
            (Some(responder), None) => {
                state.request = None;
                let hook = state.hook.take();
                drop(state);
                drop(hook);
                responder.abandon();
                Verdict::Declined
            }
            (None, _) => Verdict::Later,
        }
    }

    fn answer(&self, make: impl FnOnce(&CRequest) -> Result<Answer, Status>) {
        uncancelled(|| self.answer_once(make));
    }

    fn answer_once(&self, make: impl FnOnce(&CRequest) -> Result<Answer, Status>) {
        let mut state = self.state();
        let Some(request) = state.request.take() else {
            return;
        };
        let made = guarded(
            Err(Status::new(
                Code::Internal,
                "the engine's own code panicked; please report this",
            )),
            || make(&request),
        );
        let mut watching = None;
        let result = made.map(|answer| {
            if !answer.carried.is_empty() {
                watching = self.watching(&mut state);
            }
            state.carried = answer.carried;
            answer.response
        });
        let hook = state.hook.take();
        let is_inside = state.serving == Some(thread::current().id());
        if is_inside {
            state.answer = Some(result);
            drop(state);
        } else if let Some(responder) = state.responder.take() {
            drop(state);
            if let Some(watch) = watching {
                watch();
            }
            responder.answer(result);
        }
        drop(hook);
    }

    fn on_withdrawn(&self, hook: Hook) {
        let hook = Arc::new(hook);
        let mut state = self.state();
        if state.request.is_none() {
            return;
        }
        let before = state.hook.replace(Arc::clone(&hook));
        let watching = self.watching(&mut state);
        let is_late = self.is_withdrawn.load(Ordering::SeqCst);
        if is_late {
            state.hook = None;
        }
        drop(state);
        drop(before);
        if let Some(watch) = watching {
            watch();
        }
        if is_late {
            hook.call();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hook {
    fn call(&self) {
        calling_back(|| (self.withdrawn)(self.context.pointer()));
    }
}

impl RequestWatch for CResponder {
    fn withdrawn(&self) {
        let mut state = self.state();
        self.is_withdrawn.store(true, Ordering::SeqCst);
        let (hook, is_told_elsewhere) = (state.hook.take(), state.is_told_elsewhere);
        drop(state);
        match hook {
            Some(hook) if is_told_elsewhere => later(move || hook.call()),
            Some(hook) => hook.call(),
            None => {}
        }
    }

    fn delivered(&self) {
        let carried = std::mem::take(&mut self.state().carried);
        for foreign in carried {
            foreign.set_delivered();
        }
    }
}

/// An answer, and the memory of C in it.
struct Answer {
    response: Response,
    carried: SmallVec<[Arc<Foreign>; 1]>,
}

/// Tensors as the answer to a request.
fn tensors_answer(request: &CRequest, tensors: &[&CTensor]) -> Result<Answer, Status> {
    let carried = tensors
        .iter()
        .filter_map(|tensor| tensor.foreign().cloned())
        .collect();
    let list: SmallVec<[Tensor; 1]> = tensors
        .iter()
        .map(|tensor| tensor.to_tensor())
        .collect::<Result<_, _>>()?;
    let wanted = match request.request() {
        Request::RecvTensor { .. } => 1,
        Request::FuseRecvTensor { keys, .. } => keys.len(),
        Request::StarRunGraph(call) => call.fetches.len(),
        Request::Unary(_) | Request::Stream(_) => {
            return Err(fault("a method of a service has no tensors".to_owned()));
        }
        Request::Message { method, .. } => {
            return Err(fault(format!(
                "{method} is answered with a message, not with tensors"
            )));
        }
    };
    if list.len() != wanted {
        return Err(fault(format!(
            "{} tensors for the {wanted} that were asked for",
            list.len()
        )));
    }
    let response = match request.request() {
        Request::StarRunGraph(call) => {
            Response::Fetched(call.fetches.iter().cloned().zip(list).collect())
        }
        _ => Response::Tensors(list),
    };
    Ok(Answer { response, carried })
}

fn message_answer(request: &CRequest, body: &[u8]) -> Result<Answer, Status> {
    match request.request() {
        Request::Message { .. } => Ok(Answer {
            response: Response::Message(Buffer::from(body.to_vec())),
            carried: SmallVec::new(),
        }),
        other => Err(fault(format!(
            "method {} is not answered with a message alone",
            other.method_number()
        ))),
    }
}

fn fault(text: String) -> Status {
    Status::new(Code::Internal, format!("the service of this task: {text}"))
}

/// Takes the responder from C.
///
/// # Safety
/// `responder` is NULL or an ownership that the caller gives up.
unsafe fn take(responder: *const CResponder) -> Option<Arc<CResponder>> {
    // SAFETY: stated by the caller.
    (!responder.is_null()).then(|| unsafe { Arc::from_raw(responder) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_responder_answer_message(
    responder: *const CResponder,
    data: *const c_void,
    size: usize,
) {
    // SAFETY: the header says what each pointer is.
    if let Some(responder) = unsafe { take(responder) } {
        // SAFETY: as above.
        let body = unsafe { bytes("data", data.cast(), size) };
        responder.answer(|request| message_answer(request, body?));
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_responder_answer_tensors(
    responder: *const CResponder,
    tensors: *const *const CTensor,
    num_tensors: usize,
) {
    // SAFETY: the header says what each pointer is.
    if let Some(responder) = unsafe { take(responder) } {
        responder.answer(|request| {
            // SAFETY: as above.
            let tensors = unsafe { tensors_of("tensors", tensors, num_tensors) }
                .map_err(|status| fault(status.message.into_owned()))?;
            tensors_answer(request, &tensors)
        });
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_responder_answer_error(
    responder: *const CResponder,
    code: i32,
    message: *const c_char,
    message_size: usize,
) {
    // SAFETY: the header says what each pointer is.
    if let Some(responder) = unsafe { take(responder) } {
        // SAFETY: as above.
        responder.answer(|_| Err(unsafe { status_of(code, message, message_size) }));
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_responder_free(responder: *const CResponder) {
    // SAFETY: the header says what each pointer is.
    if let Some(responder) = unsafe { take(responder) } {
        responder.answer(|_| {
            Err(Status::new(
                Code::Internal,
                "the service dropped the request without an answer",
            )
            .because(Reason::Unanswered))
        });
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_responder_is_cancelled(
    responder: *const CResponder,
) -> bool {
    // SAFETY: NULL or alive.
    let responder = unsafe { responder.as_ref() };
    guarded(false, || responder.is_some_and(CResponder::is_cancelled))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_responder_on_cancel(
    responder: *const CResponder,
    cancelled: Option<extern "C" fn(*mut c_void)>,
    free_context: Option<extern "C" fn(*mut c_void)>,
    context: *mut c_void,
) {
    let context = Owned::new(context, free_context);
    // SAFETY: NULL or alive.
    if let (Some(responder), Some(withdrawn)) = (unsafe { responder.as_ref() }, cancelled) {
        guarded((), || responder.on_withdrawn(Hook { withdrawn, context }));
    }
}
