#![expect(unsafe_code, reason = "exported functions over pointers")]
//! `grpcxx_peer`.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;
use std::sync::Arc;

use grpcxx_rpc::{Code, Features, Reason, Status};
use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::{Client, LinkMedium, Peer, PeerState};

use crate::boundary::{Context, guarded, handle, invalid, not_null, release, retain, text};
use crate::engine::CEngine;
use crate::flight::Received;
use crate::notices::{beginning, calling_back, is_beginning, later};
use crate::status::{CStatus, c_string, reporting};

/// A peer as C holds it.
pub(crate) struct CPeer {
    peer: Peer,
    client: Client,
    received: Arc<Received>,
    address: CString,
}

/// `grpcxx_peer_state`.
#[repr(C)]
pub(crate) struct CPeerState {
    pub(crate) struct_size: usize,
    pub(crate) is_connected: bool,
    pub(crate) is_announced: bool,
    pub(crate) features: u64,
    pub(crate) status: *const c_void,
    pub(crate) status_size: usize,
    pub(crate) medium: *const c_char,
}

type PeerStateFn = extern "C" fn(*mut c_void, *const CStatus, *const CPeerState);

/// What tells C the state of a peer, for certain.
struct Telling {
    done: PeerStateFn,
    user: Context,
    state: Option<PeerState>,
    fault: Option<Status>,
    /// Who knows why nothing was told.
    client: Option<Client>,
}

impl CPeer {
    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn received(&self) -> &Arc<Received> {
        &self.received
    }
}

impl Telling {
    fn new(done: PeerStateFn, user: *mut c_void) -> Self {
        Self {
            done,
            user: Context(user),
            state: None,
            fault: None,
            client: None,
        }
    }
}

impl Telling {
    /// Why nothing is told.
    fn take_fault(&mut self) -> Option<Status> {
        self.fault.take().or_else(|| self.client.take()?.ended())
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        let (done, user) = (self.done, self.user);
        let outcome = match self.state.take() {
            Some(state) => Ok(state),
            None => Err(self.take_fault().unwrap_or_else(|| {
                Status::new(Code::Unavailable, "the engine has stopped").because(Reason::Stopping)
            })),
        };
        if is_beginning() {
            later(move || tell(done, user, &outcome));
        } else {
            tell(done, user, &outcome);
        }
    }
}

fn medium_name(medium: LinkMedium) -> &'static CStr {
    match medium {
        LinkMedium::SharedMemory => c"shm",
        LinkMedium::Rdma => c"rdma",
        _ => c"tcp",
    }
}

fn tell(done: PeerStateFn, user: Context, outcome: &Result<PeerState, Status>) {
    match outcome {
        Ok(state) => {
            let shown = CPeerState {
                struct_size: size_of::<CPeerState>(),
                is_connected: state.is_connected,
                is_announced: state.features.is_some(),
                features: state.features.map_or(0, Features::bits),
                status: state
                    .status
                    .as_ref()
                    .map_or(ptr::null(), |status| status.as_ptr().cast()),
                status_size: state.status.as_ref().map_or(0, |status| status.len()),
                medium: medium_name(state.medium).as_ptr(),
            };
            calling_back(|| done(user.0, ptr::null(), &raw const shown));
        }
        Err(status) => {
            let status = CStatus::new(status);
            calling_back(|| done(user.0, &raw const status, ptr::null()));
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_peer_new(
    engine: *const CEngine,
    address: *const c_char,
    address_size: usize,
    peer: *mut *const CPeer,
) -> *mut CStatus {
    reporting(|| {
        // SAFETY: the header says what each pointer is.
        unsafe {
            not_null("peer", peer)?;
            let engine = handle("engine", engine)?;
            let address = text("address", address, address_size)?;
            let made = CPeer {
                peer: engine.client().peer(address)?,
                client: engine.client().clone(),
                received: Arc::clone(engine.received()),
                address: c_string(address),
            };
            peer.write(Arc::into_raw(Arc::new(made)));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_engine_expect_task(
    engine: *const CEngine,
    address: *const c_char,
    address_size: usize,
    job: *const c_char,
    job_size: usize,
    task_index: u32,
) -> *mut CStatus {
    reporting(|| {
        // SAFETY: the header says what each pointer is.
        let (engine, address, job) = unsafe {
            (
                handle("engine", engine)?,
                text("address", address, address_size)?,
                text("job", job, job_size)?,
            )
        };
        if job.is_empty() {
            return Err(invalid("job is empty; give the name of the task's job"));
        }
        let task = TaskId::new(job, task_index);
        engine.client().expect_task(address, task)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_peer_retain(peer: *const CPeer) -> *const CPeer {
    // SAFETY: NULL or alive.
    unsafe { retain(peer) };
    peer
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_peer_release(peer: *const CPeer) {
    // SAFETY: NULL or an ownership of the caller.
    unsafe { release(peer) };
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_peer_address(peer: *const CPeer) -> *const c_char {
    // SAFETY: NULL or alive.
    unsafe { peer.as_ref() }.map_or(ptr::null(), |peer| peer.address.as_ptr())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_peer_inspect(
    peer: *const CPeer,
    done: Option<PeerStateFn>,
    user: *mut c_void,
) {
    let Some(done) = done else {
        return;
    };
    guarded((), || {
        beginning(|| {
            let mut telling = Telling::new(done, user);
            // SAFETY: NULL or alive.
            match unsafe { handle("peer", peer) } {
                Ok(peer) => {
                    telling.client = Some(peer.client.clone());
                    peer.client.inspect(&peer.peer, move |state| {
                        telling.state = Some(state);
                        drop(telling);
                    });
                }
                Err(status) => telling.fault = Some(status),
            }
        });
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_peer_disconnect(peer: *const CPeer) {
    // SAFETY: NULL or alive.
    if let Some(peer) = unsafe { peer.as_ref() } {
        guarded((), || peer.client.disconnect(&peer.peer));
    }
}
