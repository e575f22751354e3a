#![expect(unsafe_code, reason = "exported functions over pointers")]
//! `grpcxx_call`.

use std::ffi::c_void;
use std::future::poll_fn;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use grpcxx_memory::Buffer;
use grpcxx_rpc::{Code, Reason, Status};
use grpcxx_runtime::{Cancellation, Client, block_on};

use crate::boundary::{Context as UserContext, guarded, handle, invalid, put, release, retain};
use crate::notices::may_block;
use crate::status::{CStatus, reporting};
use crate::tensor::CTensor;

/// A call as C holds it.
#[derive(Default)]
pub(crate) struct CCall {
    pub(crate) cancellation: Cancellation,
    was_begun: AtomicBool,
    is_kept: AtomicBool,
    given: Mutex<Vec<GivenMemory>>,
    result: OnceLock<Result<Results, Status>>,
    state: Mutex<State>,
    /// The shard of the call, which a thread turns while it waits.
    shard: OnceLock<(Client, usize)>,
}

#[derive(Default)]
struct State {
    is_done: bool,
    /// Of the threads that wait.
    wakers: Vec<Waker>,
}

/// Memory of C for one tensor of a result.
#[derive(Clone, Copy)]
pub(crate) struct GivenMemory {
    index: usize,
    pub(crate) data: UserContext,
    pub(crate) size: usize,
}

/// What a call that succeeded has brought.
#[derive(Default)]
pub(crate) struct Results {
    pub(crate) tensors: Vec<Arc<CTensor>>,
    pub(crate) message: Buffer,
}

impl CCall {
    /// Takes the call for one use. False: it was used before.
    pub(crate) fn begin(&self, is_kept: bool) -> bool {
        if self.was_begun.swap(true, Ordering::SeqCst) {
            return false;
        }
        self.is_kept.store(is_kept, Ordering::SeqCst);
        true
    }

    /// Says whose shard brings the result.
    pub(crate) fn on(&self, client: &Client, shard: usize) {
        let _only_once = self.shard.set((client.clone(), shard));
    }

    /// The memory for tensor `index` of the result, if it fits.
    pub(crate) fn given_memory(&self, index: usize, data_bytes: u64) -> Option<GivenMemory> {
        lock(&self.given)
            .iter()
            .find(|given| given.index == index && given.size as u64 == data_bytes)
            .copied()
    }

    /// Ends the call; with what it keeps for those who wait.
    pub(crate) fn end(&self, result: Option<Result<Results, Status>>) {
        if let Some(result) = result {
            // A call ends once.
            let _ = self.result.set(result);
        }
        let wakers = {
            let mut state = lock(&self.state);
            state.is_done = true;
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    fn wait(&self, timeout_ms: u64) -> Result<(), Status> {
        may_block("grpcxx_call_wait")?;
        let is_begun = self.was_begun.load(Ordering::SeqCst);
        if !is_begun || !self.is_kept.load(Ordering::SeqCst) {
            return Err(Status::new(
                Code::FailedPrecondition,
                "only a call that was begun with done == NULL can be waited for",
            ));
        }
        let inherited = self.shard.get().and_then(|(client, _)| client.inherited());
        if let Some(status) = inherited {
            // Nobody ends it in a forked child, nor lets go of a lock that was held at the fork.
            return self.outcome().unwrap_or(Err(status));
        }
        let limit = (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms));
        let done = poll_fn(|context| self.poll_done(context));
        let is_done = match self.shard.get() {
            Some((client, shard)) => client.wait(*shard, done, limit).is_some(),
            // It could not begin, and another thread is about to say why.
            None => block_on(done, limit).is_some(),
        };
        if !is_done {
            let text = "the call goes on; this was the end of waiting for it";
            return Err(Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline));
        }
        self.outcome().unwrap_or(Ok(()))
    }

    /// Whether it succeeded, if it has ended and keeps its result.
    fn outcome(&self) -> Option<Result<(), Status>> {
        let result = self.result.get()?.as_ref();
        Some(result.map(|_| ()).map_err(Status::clone))
    }

    fn poll_done(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.state);
        if state.is_done {
            return Poll::Ready(());
        }
        let waker = context.waker();
        if !state.wakers.iter().any(|known| known.will_wake(waker)) {
            state.wakers.push(waker.clone());
        }
        Poll::Pending
    }

    fn results(&self) -> Option<&Results> {
        self.result.get()?.as_ref().ok()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn grpcxx_call_new() -> *const CCall {
    guarded(ptr::null(), || Arc::into_raw(Arc::new(CCall::default())))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_call_retain(call: *const CCall) -> *const CCall {
    // SAFETY: NULL or alive.
    unsafe { retain(call) };
    call
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_call_release(call: *const CCall) {
    // SAFETY: NULL or an ownership of the caller.
    unsafe { release(call) };
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_call_cancel(call: *const CCall) {
    // SAFETY: NULL or alive.
    if let Some(call) = unsafe { call.as_ref() } {
        guarded((), || call.cancellation.cancel());
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_call_wait(
    call: *const CCall,
    timeout_ms: u64,
) -> *mut CStatus {
    // SAFETY: NULL or alive.
    reporting(|| unsafe { handle("call", call) }?.wait(timeout_ms))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_call_is_done(call: *const CCall) -> bool {
    // SAFETY: NULL or alive.
    unsafe { call.as_ref() }.is_some_and(|call| lock(&call.state).is_done)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_call_num_tensors(call: *const CCall) -> usize {
    // SAFETY: NULL or alive.
    unsafe { call.as_ref() }
        .and_then(CCall::results)
        .map_or(0, |results| results.tensors.len())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_call_tensor(
    call: *const CCall,
    index: usize,
) -> *const CTensor {
    // SAFETY: NULL or alive.
    unsafe { call.as_ref() }
        .and_then(CCall::results)
        .and_then(|results| results.tensors.get(index))
        .map_or(ptr::null(), Arc::as_ptr)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_call_message(
    call: *const CCall,
    size: *mut usize,
) -> *const c_void {
    // SAFETY: NULL or alive.
    let results = unsafe { call.as_ref() }.and_then(CCall::results);
    // SAFETY: NULL or writable.
    unsafe { put(size, results.map_or(0, |results| results.message.len())) };
    results.map_or(ptr::null(), |results| results.message.as_ptr().cast())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_call_set_memory(
    call: *const CCall,
    index: usize,
    data: *mut c_void,
    size: usize,
) -> *mut CStatus {
    reporting(|| {
        // SAFETY: NULL or alive.
        let call = unsafe { handle("call", call) }?;
        if call.was_begun.load(Ordering::SeqCst) {
            return Err(Status::new(
                Code::FailedPrecondition,
                "the call has begun; give it memory before",
            ));
        }
        if data.is_null() && size > 0 {
            return Err(invalid("data is NULL"));
        }
        if size > isize::MAX as usize {
            return Err(invalid(format!("memory of {size} bytes; there is no such")));
        }
        let mut given = lock(&call.given);
        given.retain(|given| given.index != index);
        given.push(GivenMemory {
            index,
            data: UserContext(data),
            size,
        });
        Ok(())
    })
}
