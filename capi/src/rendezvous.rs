#![expect(unsafe_code, reason = "exported functions over pointers")]
//! The steps of an engine, its store and its functions.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use grpcxx_rpc::{Code, GraphCall, NamedTensors, Request, Status, Text};
use grpcxx_runtime::{Function, Responder};

use crate::begin::{Begin, CCallOptions, begin, keys_of, tensors_done, timeout_of};
use crate::boundary::{CText, Owned, counted, guarded, handle, invalid, not_null, text, texts};
use crate::call::CCall;
use crate::engine::CEngine;
use crate::flight::TensorsFn;
use crate::request::CRequest;
use crate::responder::CResponder;
use crate::status::{CStatus, reporting, status_of};
use crate::tensor::{CTensor, give, tensors_of};

type StoreFn = extern "C" fn(*mut c_void, *const c_char, usize, *const CTensor);
type FunctionFn = extern "C" fn(*mut c_void, *const CRequest, *const CResponder);

/// A function in C.
struct CFunction {
    function: FunctionFn,
    user: Owned,
}

impl Function for CFunction {
    fn call(&self, _call: GraphCall) -> Result<NamedTensors, Status> {
        Err(Status::new(
            Code::Internal,
            "a function of C answers through its responder only",
        ))
    }

    fn start(&self, call: GraphCall, responder: Responder) {
        let request = Arc::new(CRequest::new(Request::StarRunGraph(Box::new(call))));
        let held = CResponder::new(Arc::clone(&request));
        held.arm_for_later(responder);
        (self.function)(
            self.user.pointer(),
            Arc::as_ptr(&request),
            Arc::into_raw(held),
        );
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_engine_send(
    engine: *const CEngine,
    step_id: i64,
    key: *const c_char,
    key_size: usize,
    tensor: *const CTensor,
) -> *mut CStatus {
    // SAFETY: the header says what each pointer is.
    reporting(|| unsafe {
        let engine = handle("engine", engine)?;
        let key = Text::from(text("key", key, key_size)?);
        let tensor = handle("tensor", tensor)?.to_tensor()?;
        engine.with(|engine| engine.send(step_id, key, tensor))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_engine_receive(
    engine: *const CEngine,
    call: *const CCall,
    step_id: i64,
    keys: *const CText,
    num_keys: usize,
    options: *const CCallOptions,
    done: Option<TensorsFn>,
    user: *mut c_void,
) {
    // SAFETY: the header says what each pointer is.
    let call = unsafe { counted(call) };
    begin(call, tensors_done(done, user), || {
        // SAFETY: as above.
        let (engine, keys, timeout) = unsafe {
            (
                handle("engine", engine)?,
                keys_of(keys, num_keys)?,
                timeout_of(options)?,
            )
        };
        Ok(Begin {
            client: engine.client().clone(),
            peer: engine.with(|engine| Ok(engine.own_peer(step_id)))?,
            received: Arc::clone(engine.received()),
            request: Request::FuseRecvTensor {
                step_id,
                keys: keys.into(),
            },
            timeout,
            allocate: None,
        })
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_engine_abort_step(
    engine: *const CEngine,
    step_id: i64,
    code: i32,
    message: *const c_char,
    message_size: usize,
) -> *mut CStatus {
    // SAFETY: the header says what each pointer is.
    reporting(|| unsafe {
        let status = status_of(code, message, message_size);
        handle("engine", engine)?.with(|engine| engine.abort_step(step_id, status))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_engine_abort_all_steps(
    engine: *const CEngine,
    code: i32,
    message: *const c_char,
    message_size: usize,
) -> *mut CStatus {
    // SAFETY: the header says what each pointer is.
    reporting(|| unsafe {
        let status = status_of(code, message, message_size);
        handle("engine", engine)?.with(|engine| {
            engine.abort_all_steps(&status);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_engine_cleanup_step(
    engine: *const CEngine,
    step_id: i64,
) -> *mut CStatus {
    // SAFETY: NULL or alive.
    reporting(|| unsafe { handle("engine", engine) }?.with(|engine| engine.cleanup_step(step_id)))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_store_put(
    engine: *const CEngine,
    names: *const CText,
    tensors: *const *const CTensor,
    num_tensors: usize,
) -> *mut CStatus {
    // SAFETY: the header says what each pointer is.
    reporting(|| unsafe {
        let engine = handle("engine", engine)?;
        let names = texts("names", names, num_tensors)?;
        let tensors = tensors_of("tensors", tensors, num_tensors)?;
        let entries = names
            .into_iter()
            .zip(tensors)
            .map(|(name, tensor)| Ok((name, tensor.to_tensor()?)))
            .collect::<Result<_, Status>>()?;
        engine.with(|engine| engine.store_put(entries))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_store_fetch(
    engine: *const CEngine,
    name: *const c_char,
    name_size: usize,
    tensor: *mut *const CTensor,
) -> *mut CStatus {
    // SAFETY: the header says what each pointer is.
    reporting(|| unsafe {
        not_null("tensor", tensor)?;
        let name = text("name", name, name_size)?;
        let found = handle("engine", engine)?.with(|engine| engine.store_fetch(name))?;
        give(tensor, CTensor::new(found));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_store_remove(
    engine: *const CEngine,
    names: *const CText,
    num_names: usize,
) -> *mut CStatus {
    // SAFETY: the header says what each pointer is.
    reporting(|| unsafe {
        let names = texts("names", names, num_names)?;
        handle("engine", engine)?.with(|engine| {
            engine.store_remove(&names);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_store_list(
    engine: *const CEngine,
    entry: Option<StoreFn>,
    user: *mut c_void,
) {
    // SAFETY: NULL or alive.
    if let (Some(engine), Some(entry)) = (unsafe { engine.as_ref() }, entry) {
        let stored = guarded(Vec::new(), || {
            engine
                .with(|engine| Ok(engine.stored()))
                .unwrap_or_default()
        });
        for (name, tensor) in stored {
            let tensor = Arc::new(CTensor::new(tensor));
            let name = name.as_buffer();
            entry(user, name.as_ptr().cast(), name.len(), Arc::as_ptr(&tensor));
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_function_register(
    engine: *const CEngine,
    name: *const c_char,
    name_size: usize,
    function: Option<FunctionFn>,
    user: *mut c_void,
    free_user: Option<extern "C" fn(*mut c_void)>,
) -> *mut CStatus {
    let mut user = Some(Owned::new(user, free_user));
    let status = reporting(|| {
        // SAFETY: the header says what each pointer is.
        let (engine, name) = unsafe { (handle("engine", engine)?, text("name", name, name_size)?) };
        let function = function.ok_or_else(|| invalid("function is NULL"))?;
        engine.with(|engine| {
            if let Some(user) = user.take() {
                engine.register(name, Arc::new(CFunction { function, user }));
            }
            Ok(())
        })
    });
    if let Some(user) = &mut user {
        user.disarm();
    }
    status
}
