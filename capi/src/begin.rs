#![expect(unsafe_code, reason = "exported functions over pointers")]
//! The functions that begin a call.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::time::Duration;

use grpcxx_memory::Buffer;
use grpcxx_rpc::{Code, GraphCall, Method, Request, Status, Text};
use grpcxx_runtime::{CallSpec, Cancellation, Client, Peer};

use crate::boundary::{
    CText, Context, bytes, counted, guarded, handle, invalid, sized, text, texts, uncancelled,
};
use crate::call::CCall;
use crate::flight::{AllocateFn, Done, Ending, Flight, MessageFn, Received, TensorsFn};
use crate::notices::{beginning, later};
use crate::peer::CPeer;
use crate::tensor::{CTensor, tensors_of};

/// `grpcxx_call_options`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct CCallOptions {
    pub(crate) struct_size: usize,
    pub(crate) timeout_ms: u64,
}

/// `grpcxx_graph_call`.
#[repr(C)]
pub(crate) struct CGraphCall {
    pub(crate) struct_size: usize,
    pub(crate) handle: CText,
    pub(crate) step_id: u64,
    pub(crate) feed_names: *const CText,
    pub(crate) feeds: *const *const CTensor,
    pub(crate) num_feeds: usize,
    pub(crate) fetch_names: *const CText,
    pub(crate) num_fetches: usize,
    pub(crate) ps_graph_count: i32,
    pub(crate) should_trace: bool,
}

/// Everything of a call but its end.
pub(crate) struct Begin {
    pub(crate) client: Client,
    pub(crate) peer: Peer,
    pub(crate) received: Arc<Received>,
    pub(crate) request: Request,
    pub(crate) timeout: Option<Duration>,
    pub(crate) allocate: Option<(AllocateFn, Context)>,
}

/// Begins a call. Whatever keeps it from beginning is told like the end of one that has begun.
pub(crate) fn begin(
    call: Option<Arc<CCall>>,
    done: Done,
    prepare: impl FnOnce() -> Result<Begin, Status>,
) {
    uncancelled(|| begin_call(call, done, prepare));
}

fn begin_call(
    call: Option<Arc<CCall>>,
    done: Done,
    prepare: impl FnOnce() -> Result<Begin, Status>,
) {
    let is_kept = done.is_kept();
    let mut call = call;
    let mut fault = None;
    if let Some(used) = call.take_if(|call| !call.begin(is_kept)) {
        drop(used);
        fault = Some(Status::new(
            Code::FailedPrecondition,
            "a grpcxx_call is for one call; make a new one",
        ));
    }
    if is_kept && call.is_none() {
        // There is nobody to tell.
        return;
    }
    let prepared = match fault {
        Some(status) => Err(status),
        None => guarded(
            Err(Status::new(
                Code::Internal,
                "the engine's own code panicked; please report this",
            )),
            prepare,
        ),
    };
    let ending = Ending { done, call };
    match prepared {
        Ok(begin) => beginning(|| start(begin, ending)),
        Err(status) => later(move || ending.tell(Err(status))),
    }
}

fn start(begin: Begin, ending: Ending) {
    let fetches = match &begin.request {
        Request::StarRunGraph(call) => call.fetches.to_vec(),
        _ => Vec::new(),
    };
    let cancellation = ending
        .call
        .as_ref()
        .map_or_else(Cancellation::new, |call| call.cancellation.clone());
    if let Some(call) = &ending.call {
        call.on(&begin.client, begin.peer.shard());
    }
    let road = (begin.client.clone(), begin.peer.clone());
    let flight = Flight::new(ending, begin.allocate, fetches, begin.received, road);
    let noted = Arc::downgrade(&flight);
    let spec = CallSpec::new(&begin.peer, begin.request)
        .with_timeout(begin.timeout)
        .with_cancellation(&cancellation);
    if let Err(refused) = begin.client.submit(spec, flight, 0) {
        if let Some(flight) = noted.upgrade() {
            flight.set_result(Err(refused.status.clone()));
        }
        drop(refused);
    }
}

/// What the options of a call say.
///
/// # Safety
/// As the header says.
pub(crate) unsafe fn timeout_of(options: *const CCallOptions) -> Result<Option<Duration>, Status> {
    // SAFETY: stated by the caller.
    let options = unsafe { sized("options", options) }?;
    Ok((options.timeout_ms > 0).then(|| Duration::from_millis(options.timeout_ms)))
}

/// # Safety
/// As the header says.
unsafe fn toward(
    peer: *const CPeer,
    options: *const CCallOptions,
    allocate: Option<(AllocateFn, Context)>,
    request: Request,
) -> Result<Begin, Status> {
    // SAFETY: stated by the caller.
    let (peer, timeout) = unsafe { (handle("peer", peer)?, timeout_of(options)?) };
    Ok(Begin {
        client: peer.client().clone(),
        peer: peer.peer().clone(),
        received: Arc::clone(peer.received()),
        request,
        timeout,
        allocate,
    })
}

pub(crate) fn tensors_done(done: Option<TensorsFn>, user: *mut c_void) -> Done {
    done.map_or(Done::Kept, |done| Done::Tensors(done, Context(user)))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_recv_tensor(
    peer: *const CPeer,
    call: *const CCall,
    step_id: i64,
    key: *const c_char,
    key_size: usize,
    options: *const CCallOptions,
    allocate: Option<AllocateFn>,
    done: Option<TensorsFn>,
    user: *mut c_void,
) {
    let allocate = allocate.map(|allocate| (allocate, Context(user)));
    // SAFETY: the header says what each pointer is.
    let call = unsafe { counted(call) };
    begin(call, tensors_done(done, user), || {
        // SAFETY: as above.
        unsafe {
            let key = Text::from(text("key", key, key_size)?);
            toward(
                peer,
                options,
                allocate,
                Request::RecvTensor { step_id, key },
            )
        }
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_fuse_recv_tensor(
    peer: *const CPeer,
    call: *const CCall,
    step_id: i64,
    keys: *const CText,
    num_keys: usize,
    options: *const CCallOptions,
    allocate: Option<AllocateFn>,
    done: Option<TensorsFn>,
    user: *mut c_void,
) {
    let allocate = allocate.map(|allocate| (allocate, Context(user)));
    // SAFETY: the header says what each pointer is.
    let call = unsafe { counted(call) };
    begin(call, tensors_done(done, user), || {
        // SAFETY: as above.
        unsafe {
            let keys = keys_of(keys, num_keys)?;
            toward(
                peer,
                options,
                allocate,
                Request::FuseRecvTensor {
                    step_id,
                    keys: keys.into(),
                },
            )
        }
    });
}

/// # Safety
/// As for [`texts`].
pub(crate) unsafe fn keys_of(keys: *const CText, num_keys: usize) -> Result<Vec<Text>, Status> {
    // SAFETY: stated by the caller.
    let keys = unsafe { texts("keys", keys, num_keys) }?;
    if keys.is_empty() {
        return Err(invalid("there are no keys; give at least one"));
    }
    Ok(keys)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_message_call(
    peer: *const CPeer,
    call: *const CCall,
    method: i32,
    data: *const c_void,
    size: usize,
    options: *const CCallOptions,
    done: Option<MessageFn>,
    user: *mut c_void,
) {
    let done = done.map_or(Done::Kept, |done| Done::Message(done, Context(user)));
    // SAFETY: the header says what each pointer is.
    let call = unsafe { counted(call) };
    begin(call, done, || {
        let method = message_method(method)?;
        // SAFETY: as above.
        unsafe {
            let body = Buffer::from(bytes("data", data.cast(), size)?.to_vec());
            toward(peer, options, None, Request::Message { method, body })
        }
    });
}

fn message_method(number: i32) -> Result<Method, Status> {
    match Method::from_number(number) {
        Some(method @ (Method::RecvTensor | Method::FuseRecvTensor | Method::StarRunGraph)) => {
            Err(invalid(format!("{method} has a function of its own")))
        }
        Some(method) => Ok(method),
        None => Err(invalid(format!("{number} is no method; see grpcxx_method"))),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_graph_call_begin(
    peer: *const CPeer,
    call: *const CCall,
    graph_call: *const CGraphCall,
    options: *const CCallOptions,
    allocate: Option<AllocateFn>,
    done: Option<TensorsFn>,
    user: *mut c_void,
) {
    let allocate = allocate.map(|allocate| (allocate, Context(user)));
    // SAFETY: the header says what each pointer is.
    let call = unsafe { counted(call) };
    begin(call, tensors_done(done, user), || {
        // SAFETY: as above.
        unsafe {
            let graph_call = graph_call_of(graph_call)?;
            toward(
                peer,
                options,
                allocate,
                Request::StarRunGraph(Box::new(graph_call)),
            )
        }
    });
}

/// # Safety
/// As the header says.
unsafe fn graph_call_of(given: *const CGraphCall) -> Result<GraphCall, Status> {
    // SAFETY: stated by the caller.
    unsafe {
        handle("graph_call", given.cast::<usize>())?;
        let given: CGraphCall = sized("graph_call", given)?;
        let names = texts("feed_names", given.feed_names, given.num_feeds)?;
        let feeds = tensors_of("feeds", given.feeds, given.num_feeds)?;
        let feeds = names
            .into_iter()
            .zip(feeds)
            .map(|(name, tensor)| Ok((name, tensor.to_tensor()?)))
            .collect::<Result<_, Status>>()?;
        Ok(GraphCall {
            graph_handle: text("handle", given.handle.data, given.handle.size)?.into(),
            step_id: given.step_id,
            feeds,
            fetches: texts("fetch_names", given.fetch_names, given.num_fetches)?.into(),
            ps_graph_count: given.ps_graph_count,
            should_trace: given.should_trace,
            trace: None,
        })
    }
}

impl Default for CGraphCall {
    fn default() -> Self {
        let nothing = CText {
            data: std::ptr::null(),
            size: 0,
        };
        Self {
            struct_size: 0,
            handle: nothing,
            step_id: 0,
            feed_names: std::ptr::null(),
            feeds: std::ptr::null(),
            num_feeds: 0,
            fetch_names: std::ptr::null(),
            num_fetches: 0,
            ps_graph_count: 0,
            should_trace: false,
        }
    }
}
