#![expect(
    unsafe_code,
    reason = "memory of C becomes the place where payload lands, and results become handles"
)]
//! A call under way: where its payload lands, and how C hears of its end.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_rpc::{Code, Reason, Response, Status, Tensor, TensorMeta, Text};
use grpcxx_runtime::{CallResult, Client, CompletionHandler, Peer, ShardContext};
use smallvec::SmallVec;

use crate::boundary::{Context, Owned};
use crate::call::{CCall, Results};
use crate::notices::{after, calling_back, is_beginning, later};
use crate::status::CStatus;
use crate::tensor::{CTensor, Landed};

/// `grpcxx_tensor_meta`.
#[repr(C)]
pub(crate) struct CMeta {
    pub(crate) struct_size: usize,
    pub(crate) dtype: i32,
    pub(crate) is_dead: bool,
    pub(crate) rank: usize,
    pub(crate) dims: *const i64,
    pub(crate) data_size: usize,
}

/// `grpcxx_memory`.
#[repr(C)]
pub(crate) struct CMemory {
    pub(crate) struct_size: usize,
    pub(crate) data: *mut c_void,
    pub(crate) release: Option<extern "C" fn(*mut c_void)>,
    pub(crate) context: *mut c_void,
}

pub(crate) type AllocateFn =
    extern "C" fn(*mut c_void, usize, *const CMeta, *mut CMemory) -> *mut CStatus;
pub(crate) type TensorsFn =
    extern "C" fn(*mut c_void, *const CStatus, *const *const CTensor, usize);
pub(crate) type MessageFn = extern "C" fn(*mut c_void, *const CStatus, *const c_void, usize);

/// How C wants to hear of the end of a call.
#[derive(Clone, Copy)]
pub(crate) enum Done {
    Tensors(TensorsFn, Context),
    Message(MessageFn, Context),
    /// The result stays in the call.
    Kept,
}

impl Done {
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self, Self::Kept)
    }
}

/// What becomes of received bytes, over all calls of an engine.
#[derive(Default)]
pub(crate) struct Received {
    pub(crate) caller_tensors: AtomicU64,
    pub(crate) caller_bytes: AtomicU64,
    pub(crate) engine_tensors: AtomicU64,
    pub(crate) engine_bytes: AtomicU64,
}

/// A call under way. Whoever may still write to memory that C has lent holds an ownership, and so
/// does the engine until the call has its result: C hears of the end when the last one is gone.
pub(crate) struct Flight {
    this: Weak<Self>,
    ending: Option<Ending>,
    result: Mutex<Option<Result<Results, Status>>>,
    allocate: Option<(AllocateFn, Context)>,
    landed: Mutex<SmallVec<[(usize, Landed); 1]>>,
    /// The names of the fetches of a graph call in the order of the caller; empty for others.
    fetches: Vec<Text>,
    received: Arc<Received>,
    client: Client,
    peer: Peer,
}

/// What is left to do when a call has ended.
pub(crate) struct Ending {
    pub(crate) done: Done,
    pub(crate) call: Option<Arc<CCall>>,
}

impl Flight {
    pub(crate) fn new(
        ending: Ending,
        allocate: Option<(AllocateFn, Context)>,
        fetches: Vec<Text>,
        received: Arc<Received>,
        (client, peer): (Client, Peer),
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            ending: Some(ending),
            result: Mutex::new(None),
            allocate,
            landed: Mutex::new(SmallVec::new()),
            fetches,
            received,
            client,
            peer,
        })
    }

    /// Notes how the call ended; C hears of it with the last ownership.
    pub(crate) fn set_result(&self, result: Result<Results, Status>) {
        *lock(&self.result) = Some(result);
    }

    fn results(&self, response: Response) -> Result<Results, Status> {
        match response {
            Response::Message(message) => Ok(Results {
                tensors: Vec::new(),
                message,
            }),
            Response::Unary(envelope) => Ok(Results {
                tensors: Vec::new(),
                message: envelope.message(),
            }),
            Response::Tensors(tensors) => Ok(self.tensors(tensors.into_iter())),
            Response::Fetched(fetched) => {
                let fetched = in_order(&self.fetches, fetched.into_vec())?;
                Ok(self.tensors(fetched.into_iter()))
            }
        }
    }

    fn tensors(&self, tensors: impl Iterator<Item = Tensor>) -> Results {
        let landed = std::mem::take(&mut *lock(&self.landed));
        let tensors = tensors
            .enumerate()
            .map(|(index, tensor)| {
                let bytes = tensor.data.len() as u64;
                let place = landed.iter().find(|(at, _)| *at == index);
                Arc::new(match place {
                    Some((_, place)) => {
                        count(&self.received.caller_tensors, 1);
                        count(&self.received.caller_bytes, bytes);
                        CTensor::landed(tensor, *place)
                    }
                    None => {
                        count(&self.received.engine_tensors, 1);
                        count(&self.received.engine_bytes, bytes);
                        CTensor::new(tensor)
                    }
                })
            })
            .collect();
        Results {
            tensors,
            message: Buffer::new(),
        }
    }

    /// Memory that goes back when the call has ended.
    fn lent(&self, index: usize, data: *mut c_void, size: usize) -> Result<BufferMut, Status> {
        let this = self.this.upgrade().ok_or_else(ended)?;
        self.land(index, data, size, Box::new(this))
    }

    fn land(
        &self,
        index: usize,
        data: *mut c_void,
        size: usize,
        owner: Box<dyn Send>,
    ) -> Result<BufferMut, Status> {
        let start = NonNull::new(data.cast::<u8>())
            .ok_or_else(|| Status::new(Code::InvalidArgument, "the memory for a tensor is NULL"))?;
        lock(&self.landed).push((index, Landed::at(data.cast(), size)));
        // SAFETY: the caller lends `size` bytes there to the engine alone until it is told
        // otherwise, which the drop of `owner` does; what somebody else's code has allocated counts
        // as initialised.
        Ok(unsafe { BufferMut::from_foreign(start, size, owner) })
    }

    /// Sees to it that a peer which stops in the middle of a payload does not keep the caller's
    /// memory.
    fn take_memory_back(&self) {
        let waiting = self.this.clone();
        after(STUCK_TIME, move || {
            if let Some(flight) = waiting.upgrade() {
                tracing::warn!(
                    peer = flight.peer.address(),
                    "closing the connection, on which the payload of a call that has failed does not arrive"
                );
                flight.client.disconnect(&flight.peer);
            }
        });
    }

    fn ask(
        &self,
        (allocate, user): (AllocateFn, Context),
        index: usize,
        meta: &TensorMeta,
    ) -> Option<Result<BufferMut, Status>> {
        let dims: SmallVec<[i64; 6]> = meta.shape.dims().iter().map(|&dim| dim as i64).collect();
        let size = match usize::try_from(meta.data_bytes) {
            Ok(size) if size <= isize::MAX as usize => size,
            _ => return None,
        };
        let shown = CMeta {
            struct_size: size_of::<CMeta>(),
            dtype: i32::from(meta.dtype.number()),
            is_dead: meta.is_dead,
            rank: dims.len(),
            dims: dims.as_ptr(),
            data_size: size,
        };
        let mut memory = CMemory {
            struct_size: size_of::<CMemory>(),
            data: ptr::null_mut(),
            release: None,
            context: ptr::null_mut(),
        };
        let status = calling_back(|| allocate(user.0, index, &raw const shown, &raw mut memory));
        let owner = memory
            .release
            .map(|release| Owned::new(memory.context, Some(release)));
        // SAFETY: a status that the callback returns is the engine's.
        if let Err(status) = unsafe { CStatus::outcome(status) } {
            return Some(Err(status));
        }
        if memory.data.is_null() {
            return None;
        }
        Some(match owner {
            Some(owner) => self.land(index, memory.data, size, Box::new(Released(owner))),
            None => self.lent(index, memory.data, size),
        })
    }
}

/// Memory with a function of C that takes it back.
pub(crate) struct Released(pub(crate) Owned);

impl Drop for Released {
    fn drop(&mut self) {
        calling_back(|| self.0.end());
    }
}

impl CompletionHandler for Flight {
    /// Where C has given no callback, there is no code that could miss the engine's thread.
    fn runs_anywhere(&self) -> bool {
        let is_kept = (self.ending.as_ref()).is_some_and(|ending| ending.done.is_kept());
        is_kept && self.allocate.is_none()
    }

    fn on_complete(
        self: Arc<Self>,
        _token: u64,
        result: CallResult,
        _shard: &mut ShardContext<'_>,
    ) {
        let result = result.and_then(|response| self.results(response));
        let is_failure = result.is_err();
        self.set_result(result);
        if is_failure && Arc::strong_count(&self) > 1 {
            self.take_memory_back();
        }
    }

    fn allocate(
        &self,
        _token: u64,
        index: usize,
        meta: &TensorMeta,
    ) -> Option<Result<BufferMut, Status>> {
        let call = self.ending.as_ref().and_then(|ending| ending.call.as_ref());
        if let Some(given) = call.and_then(|call| call.given_memory(index, meta.data_bytes)) {
            return Some(self.lent(index, given.data.0, given.size));
        }
        self.allocate
            .and_then(|allocate| self.ask(allocate, index, meta))
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let result = self
            .result
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .unwrap_or_else(|| Err(ended()));
        let Some(ending) = self.ending.take() else {
            return;
        };
        if is_beginning() {
            later(move || ending.tell(result));
        } else {
            ending.tell(result);
        }
    }
}

impl Ending {
    /// Tells C how the call ended.
    pub(crate) fn tell(self, result: Result<Results, Status>) {
        let Self { done, call } = self;
        let kept = match done {
            Done::Kept => Some(result),
            Done::Tensors(done, user) => {
                tell_tensors(done, user, &result);
                None
            }
            Done::Message(done, user) => {
                tell_message(done, user, &result);
                None
            }
        };
        if let Some(call) = call {
            call.end(kept);
        }
    }
}

fn tell_tensors(done: TensorsFn, user: Context, result: &Result<Results, Status>) {
    match result {
        Ok(results) => {
            let handles: SmallVec<[*const CTensor; 8]> =
                results.tensors.iter().map(Arc::as_ptr).collect();
            calling_back(|| done(user.0, ptr::null(), handles.as_ptr(), handles.len()));
        }
        Err(status) => {
            let status = CStatus::new(status);
            calling_back(|| done(user.0, &raw const status, ptr::null(), 0));
        }
    }
}

fn tell_message(done: MessageFn, user: Context, result: &Result<Results, Status>) {
    match result {
        Ok(results) => {
            let message = &results.message;
            calling_back(|| done(user.0, ptr::null(), message.as_ptr().cast(), message.len()));
        }
        Err(status) => {
            let status = CStatus::new(status);
            calling_back(|| done(user.0, &raw const status, ptr::null(), 0));
        }
    }
}

/// The tensors of a graph call in the order of its fetches.
fn in_order(fetches: &[Text], fetched: Vec<(Text, Tensor)>) -> Result<Vec<Tensor>, Status> {
    let is_ordered = fetches.len() == fetched.len()
        && fetches
            .iter()
            .zip(&fetched)
            .all(|(name, (found, _))| name == found);
    if is_ordered {
        return Ok(fetched.into_iter().map(|(_, tensor)| tensor).collect());
    }
    let mut by_name: HashMap<Text, Tensor> = fetched.into_iter().collect();
    fetches
        .iter()
        .map(|name| {
            by_name.remove(name).ok_or_else(|| {
                Status::new(
                    Code::Internal,
                    format!("the answer of the peer lacks the tensor \"{name}\""),
                )
            })
        })
        .collect()
}

fn count(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

fn ended() -> Status {
    Status::new(
        Code::Unavailable,
        "the engine stopped before the call ended",
    )
    .because(Reason::Stopping)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long the payload of a call that has failed may take to arrive while its memory is the
/// caller's.
const STUCK_TIME: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Vec<(Text, Tensor)> {
        names
            .iter()
            .enumerate()
            .map(|(index, name)| (Text::from(*name), Tensor::scalar(index as i32)))
            .collect()
    }

    #[test]
    fn results_come_in_the_order_of_the_fetches() {
        let fetches: Vec<Text> = ["b", "a", "c"].map(Text::from).into();
        let tensors = in_order(&fetches, named(&["a", "b", "c"])).unwrap();
        assert_eq!(
            tensors,
            [Tensor::scalar(1), Tensor::scalar(0), Tensor::scalar(2)]
        );
        let missing = in_order(&fetches, named(&["a", "b"])).unwrap_err();
        assert_eq!(missing.code, Code::Internal);
    }
}
