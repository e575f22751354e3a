#![expect(unsafe_code, reason = "exported functions over pointers")]
//! `grpcxx_engine`.

use std::ffi::{CStr, CString, c_char, c_void};
use std::net::SocketAddr;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use grpcxx_rpc::{Code, Status};
use grpcxx_runtime::{Certificates, Client, Counters, Engine, PlainForbidden, log as runtime_log};

use crate::boundary::{guarded, handle, invalid, not_null, put, text};
use crate::flight::Received;
use crate::held::HeldEngine;
use crate::log;
use crate::notices::{is_calling_back, later, may_block};
use crate::options::COptions;
use crate::start::{Page, open, start};
use crate::status::{CStatus, c_string, reporting};

/// An engine as C holds it.
pub(crate) struct CEngine {
    engine: HeldEngine,
    metrics_address: Option<CString>,
    certificates: Option<Arc<Certificates>>,
    client: Client,
    received: Arc<Received>,
    star_address: Option<CString>,
    star_port: u16,
    start_report: CString,
    task: CString,
    devices: Vec<(CString, u64)>,
}

type CounterFn = extern "C" fn(*mut c_void, *const c_char, *const c_char, u64);

impl CEngine {
    pub(crate) fn start(options: &COptions) -> Result<Box<Self>, Status> {
        let (config, warnings) = options.config()?;
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        let engine = start(options.engine_options(&config))?;
        let page = Page::start(&engine, config.metrics_address, options.program_page())?;
        // C may keep the address that its preparation gets.
        let engine = Box::new(Self::new(engine, page));
        options.prepare(&engine)?;
        engine.with(open)?;
        Ok(engine)
    }

    fn new(engine: Engine, page: Page) -> Self {
        let address = engine.local_addr();
        let metrics_address = page.address();
        Self {
            certificates: engine.certificates(),
            client: engine.client(),
            received: Arc::new(Received::default()),
            star_address: address.map(|address| c_string(&address.to_string())),
            star_port: address.map_or(0, |address| address.port()),
            start_report: c_string(&engine.start_report().to_string()),
            task: c_string(&engine.start_report().task),
            devices: engine
                .devices()
                .map(|(name, incarnation)| (c_string(name), incarnation))
                .collect(),
            engine: HeldEngine::new(engine, page),
            metrics_address: metrics_address.map(|address| c_string(&address.to_string())),
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn received(&self) -> &Arc<Received> {
        &self.received
    }

    pub(crate) fn metrics_address(&self) -> Option<&CStr> {
        self.metrics_address.as_deref()
    }

    /// Runs code with the engine unless it has stopped.
    pub(crate) fn with<T>(
        &self,
        code: impl FnOnce(&Engine) -> Result<T, Status>,
    ) -> Result<T, Status> {
        self.engine.with(code)
    }

    fn counters(&self) -> Vec<u64> {
        let engine = self
            .with(|engine| Ok(engine.counters()))
            .unwrap_or_default();
        let received = &self.received;
        let own = [
            &received.caller_tensors,
            &received.caller_bytes,
            &received.engine_tensors,
            &received.engine_bytes,
        ];
        let engine = engine.entries().into_iter().map(|(_, _, value)| value);
        let log = runtime_log::counters().entries();
        engine
            .chain(own.into_iter().map(load))
            .chain(log.into_iter().map(|(_, _, value)| value))
            .collect()
    }
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Names and meanings of the counters, in the order of their values.
static COUNTERS: LazyLock<Vec<(CString, CString)>> = LazyLock::new(|| {
    let engine = Counters::default();
    let engine = engine.entries().into_iter();
    let log = runtime_log::counters().entries();
    engine
        .map(|(name, meaning, _)| (name, meaning.trim()))
        .chain(RECEIVED)
        .chain(log.into_iter().map(|(name, meaning, _)| (name, meaning)))
        .map(|(name, meaning)| (c_string(name), c_string(meaning)))
        .collect()
});

/// What is counted here, in the order of [`CEngine::counters`].
const RECEIVED: [(&str, &str); 4] = [
    (
        "received_into_caller_tensors",
        "Received tensors whose data landed in memory of the caller.",
    ),
    (
        "received_into_caller_bytes",
        "Bytes of data that landed in memory of the caller.",
    ),
    (
        "received_into_engine_tensors",
        "Received tensors whose data lies in memory of the engine.",
    ),
    (
        "received_into_engine_bytes",
        "Bytes of data that lie in memory of the engine.",
    ),
];

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_engine_start(
    options: *const COptions,
    engine: *mut *mut CEngine,
) -> *mut CStatus {
    reporting(|| {
        may_block("grpcxx_engine_start")?;
        not_null("engine", engine)?;
        // SAFETY: NULL or alive.
        let started = match unsafe { options.as_ref() } {
            Some(options) => CEngine::start(options),
            None => CEngine::start(&COptions::default()),
        }?;
        // SAFETY: writable.
        unsafe { engine.write(Box::into_raw(started)) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_engine_shutdown(
    engine: *const CEngine,
    grace_ms: u64,
) -> *mut CStatus {
    reporting(|| {
        may_block("grpcxx_engine_shutdown")?;
        // SAFETY: NULL or alive.
        unsafe { handle("engine", engine) }?
            .engine
            .stop(Duration::from_millis(grace_ms))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_engine_free(engine: *mut CEngine) {
    if engine.is_null() {
        return;
    }
    // SAFETY: owned by the caller.
    let engine = unsafe { Box::from_raw(engine) };
    guarded((), || {
        if is_calling_back() {
            later(move || drop(engine));
        } else {
            drop(engine);
            log::flush();
        }
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_engine_star_address(
    engine: *const CEngine,
) -> *const c_char {
    // SAFETY: NULL or alive.
    unsafe { engine.as_ref() }
        .and_then(|engine| engine.star_address.as_deref())
        .map_or(ptr::null(), CStr::as_ptr)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_engine_star_port(engine: *const CEngine) -> u16 {
    // SAFETY: NULL or alive.
    unsafe { engine.as_ref() }.map_or(0, |engine| engine.star_port)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_engine_start_report(
    engine: *const CEngine,
) -> *const c_char {
    // SAFETY: NULL or alive.
    unsafe { engine.as_ref() }.map_or(ptr::null(), |engine| engine.start_report.as_ptr())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_engine_task(engine: *const CEngine) -> *const c_char {
    // SAFETY: NULL or alive.
    unsafe { engine.as_ref() }.map_or(ptr::null(), |engine| engine.task.as_ptr())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_engine_device(
    engine: *const CEngine,
    index: usize,
    incarnation: *mut u64,
) -> *const c_char {
    // SAFETY: NULL or alive.
    let device = unsafe { engine.as_ref() }.and_then(|engine| engine.devices.get(index));
    // SAFETY: NULL or writable.
    unsafe {
        put(
            incarnation,
            device.map_or(0, |(_, incarnation)| *incarnation),
        )
    };
    device.map_or(ptr::null(), |(name, _)| name.as_ptr())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_engine_check_plain_call(
    engine: *const CEngine,
    address: *const c_char,
    address_size: usize,
) -> *mut CStatus {
    // SAFETY: the header says what each pointer is.
    unsafe {
        check_plain(
            engine,
            address,
            address_size,
            Certificates::check_plain_call,
        )
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_engine_check_plain_answer(
    engine: *const CEngine,
    address: *const c_char,
    address_size: usize,
) -> *mut CStatus {
    // SAFETY: the header says what each pointer is.
    unsafe {
        let check = Certificates::check_plain_answer;
        check_plain(engine, address, address_size, check)
    }
}

/// # Safety
/// As the header says.
unsafe fn check_plain(
    engine: *const CEngine,
    address: *const c_char,
    address_size: usize,
    check: impl FnOnce(&Certificates, &str) -> Result<(), PlainForbidden>,
) -> *mut CStatus {
    reporting(|| {
        // SAFETY: stated by the caller.
        let (engine, address) = unsafe {
            let engine = handle("engine", engine)?;
            (engine, text("address", address, address_size)?)
        };
        let Some(certificates) = &engine.certificates else {
            return Ok(());
        };
        let is_name = address.parse::<SocketAddr>().is_err();
        if is_name && certificates.options().mode.dials() {
            may_block("grpcxx_engine_check_plain")?;
        }
        let forbidden =
            |why: PlainForbidden| Status::new(Code::FailedPrecondition, why.to_string());
        check(certificates, address).map_err(forbidden)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_engine_counters(
    engine: *const CEngine,
    counter: Option<CounterFn>,
    user: *mut c_void,
) {
    // SAFETY: NULL or alive.
    if let (Some(engine), Some(counter)) = (unsafe { engine.as_ref() }, counter) {
        let values = guarded(Vec::new(), || engine.counters());
        for ((name, meaning), value) in COUNTERS.iter().zip(values) {
            counter(user, name.as_ptr(), meaning.as_ptr(), value);
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_engine_counter(
    engine: *const CEngine,
    name: *const c_char,
    value: *mut u64,
) -> bool {
    guarded(Ok(false), || {
        not_null("name", name)?;
        // SAFETY: NULL or alive.
        let engine = unsafe { handle("engine", engine) }?;
        // SAFETY: a text that ends with NUL.
        let name = unsafe { CStr::from_ptr(name) };
        let index = COUNTERS
            .iter()
            .position(|(known, _)| known.as_c_str() == name)
            .ok_or_else(|| invalid("no such counter"))?;
        // SAFETY: NULL or writable.
        unsafe { put(value, engine.counters()[index]) };
        Ok::<bool, Status>(true)
    })
    .unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::thread;

    use grpcxx_rpc::Reason;

    use super::*;
    use crate::begin::grpcxx_recv_tensor;
    use crate::boundary::Context;
    use crate::call::{CCall, grpcxx_call_new, grpcxx_call_release, grpcxx_call_wait};
    use crate::peer::{
        CPeer, CPeerState, grpcxx_peer_inspect, grpcxx_peer_new, grpcxx_peer_release,
    };
    use crate::status::{grpcxx_status_free, grpcxx_status_reason};

    /// Where nobody listens: calls wait for a connection.
    const NOWHERE: &str = "127.0.0.1:1";
    const KEY: &str = "/job:ps/replica:0/task:0/device:CPU:0;0000000000000001;\
                       /job:worker/replica:0/task:0/device:CPU:0;edge;0:0";

    fn begin(peer: *const CPeer) -> *const CCall {
        let call = grpcxx_call_new();
        // SAFETY: as the header demands.
        unsafe {
            let (key, size) = (KEY.as_ptr().cast(), KEY.len());
            grpcxx_recv_tensor(
                peer,
                call,
                1,
                key,
                size,
                ptr::null(),
                None,
                None,
                ptr::null_mut(),
            );
        }
        call
    }

    fn reason_of(status: *mut CStatus) -> i32 {
        // SAFETY: the status is owned here.
        unsafe {
            let reason = grpcxx_status_reason(status);
            grpcxx_status_free(status);
            reason
        }
    }

    /// Waits on a thread of its own, which tells why the call ended.
    fn wait(call: *const CCall, timeout_ms: u64, ends: &Sender<i32>) {
        let (call, ends) = (Context(call.cast_mut().cast()), ends.clone());
        thread::spawn(move || {
            // As a whole: the pointer alone may not go to another thread.
            let Context(call) = { call };
            let call = call.cast_const().cast();
            // SAFETY: the call is owned here.
            let reason = reason_of(unsafe { grpcxx_call_wait(call, timeout_ms) });
            // SAFETY: as above.
            unsafe { grpcxx_call_release(call) };
            ends.send(reason).expect("the test listens");
        });
    }

    extern "C" fn told(user: *mut c_void, status: *const CStatus, _: *const CPeerState) {
        // SAFETY: the test gives a sender, and waits for what it sends. From then on the test may
        // end, with its own.
        let ends = unsafe { &*user.cast::<Sender<i32>>() }.clone();
        // SAFETY: NULL or alive.
        let _listens = ends.send(unsafe { grpcxx_status_reason(status) });
    }

    #[test]
    fn every_wait_and_every_later_call_of_a_dead_engine_ends_with_its_reason() {
        let engine = CEngine::start(&COptions::default()).unwrap();
        let mut peer = ptr::null();
        // SAFETY: as the header demands.
        let made = unsafe {
            let (address, size) = (NOWHERE.as_ptr().cast(), NOWHERE.len());
            grpcxx_peer_new(&raw const *engine, address, size, &raw mut peer)
        };
        assert!(made.is_null());
        let (ends, ended) = channel();
        let next = || ended.recv_timeout(PATIENCE).expect("C waits for ever");
        wait(begin(peer), 0, &ends);
        wait(begin(peer), 600_000, &ends);
        thread::sleep(Duration::from_millis(50));
        assert!(ended.try_recv().is_err(), "a call has ended too soon");

        let death = |engine: &Engine| engine.run_on(0, |_| panic!("asked to die"));
        engine.with(death).unwrap();
        let died = Reason::ShardDied as i32;
        assert_eq!([next(), next()], [died, died]);
        wait(begin(peer), 0, &ends);
        assert_eq!(next(), died);
        // SAFETY: as the header demands.
        unsafe { grpcxx_peer_inspect(peer, Some(told), (&raw const ends).cast_mut().cast()) };
        assert_eq!(next(), died);
        let cleaned_up = engine.with(|engine| engine.cleanup_step(1)).unwrap_err();
        assert_eq!(cleaned_up.reason, Reason::ShardDied);
        // SAFETY: the peer is owned here.
        unsafe { grpcxx_peer_release(peer) };
        assert!(engine.engine.stop(Duration::ZERO).is_err());
    }

    const PATIENCE: Duration = Duration::from_secs(20);
}
