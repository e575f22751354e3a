use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use grpcxx_transport::TransportError;

use super::adapter::{CompletionQueue, lock};
use super::completions::request_id;
use super::ffi;
use super::open::{OpenDevice, failed, last_error};
use crate::adapter::{Endpoint, Queue, QueueDepth, QueueTag, Receive, Request, Work};
use crate::options::RdmaOptions;

/// A pair of queues.
pub struct VerbsQueue {
    pair: NonNull<ffi::QueuePair>,
    completions: Arc<CompletionQueue>,
    tags: Arc<Mutex<HashMap<u32, QueueTag>>>,
    tag: QueueTag,
    reserved: u32,
    sequence: u32,
    reads: u8,
    timeout: u8,
    retries: u8,
    inline_bytes: u32,
    sends: Vec<ffi::SendRequest>,
    receives: Vec<ffi::ReceiveRequest>,
    gathers: Vec<ffi::Gather>,
}

// SAFETY: libibverbs lets any thread use a pair of queues, and what the lists point to is written
// anew before each use.
unsafe impl Send for VerbsQueue {}

impl VerbsQueue {
    pub(super) fn new(
        completions: Arc<CompletionQueue>,
        tag: QueueTag,
        depth: QueueDepth,
        reserved: u32,
        options: &RdmaOptions,
        tags: &Arc<Mutex<HashMap<u32, QueueTag>>>,
    ) -> Result<Self, TransportError> {
        let device = &completions.device;
        let mut inline_bytes = device.limits.inline_bytes;
        let pair = loop {
            let mut init = ffi::QueueInit {
                user: ptr::null_mut(),
                send_cq: completions.queue.as_ptr(),
                recv_cq: completions.queue.as_ptr(),
                srq: ptr::null_mut::<c_void>(),
                cap: ffi::QueueCapabilities {
                    max_send_wr: depth.sends,
                    max_recv_wr: depth.receives,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: inline_bytes,
                },
                qp_type: ffi::QPT_RC,
                sq_sig_all: 0,
            };
            // SAFETY: domain and completion queue are there.
            let pair =
                unsafe { (device.functions.ibv_create_qp)(device.domain.as_ptr(), &mut init) };
            if let Some(pair) = NonNull::new(pair) {
                break pair;
            }
            if inline_bytes == 0 {
                return Err(last_error("create a queue pair of", &device.name));
            }
            inline_bytes = 0;
        };
        completions.reserved.fetch_add(reserved, Ordering::Relaxed);
        // SAFETY: made above.
        let number = unsafe { pair.as_ref().number };
        lock(tags).insert(number, tag);
        let mut queue = Self {
            pair,
            tags: Arc::clone(tags),
            tag,
            reserved,
            sequence: fastrand::u32(..1 << 24),
            reads: options.reads.min(device.limits.reads_per_queue).max(1),
            timeout: options.timeout,
            retries: options.retries,
            inline_bytes,
            sends: Vec::with_capacity(depth.sends as usize),
            receives: Vec::with_capacity(depth.receives as usize),
            gathers: Vec::with_capacity(depth.sends.max(depth.receives) as usize),
            completions,
        };
        let mut attributes = ffi::QueueAttributes {
            qp_state: ffi::QPS_INIT,
            port_num: queue.device().port.number,
            // Writes carry immediate data and no bytes: no memory is registered for them.
            qp_access_flags: (ffi::ACCESS_REMOTE_READ | ffi::ACCESS_REMOTE_WRITE) as c_uint,
            ..ffi::QueueAttributes::default()
        };
        let mask = ffi::QP_STATE | ffi::QP_PKEY_INDEX | ffi::QP_PORT | ffi::QP_ACCESS_FLAGS;
        queue.modify(&mut attributes, mask, "prepare")?;
        Ok(queue)
    }

    fn device(&self) -> &Arc<OpenDevice> {
        &self.completions.device
    }

    fn modify(
        &mut self,
        attributes: &mut ffi::QueueAttributes,
        mask: c_int,
        operation: &str,
    ) -> Result<(), TransportError> {
        let functions = self.device().functions;
        // SAFETY: the pair is there; the mask names only attributes that are set.
        let refused = unsafe { (functions.ibv_modify_qp)(self.pair.as_ptr(), attributes, mask) };
        if refused == 0 {
            return Ok(());
        }
        let operation = format!("{operation} a queue pair of");
        Err(failed(&operation, &self.device().name, refused))
    }

    /// The operations of this pair's driver.
    fn operations(&self) -> &ffi::ContextOperations {
        // SAFETY: the context is open as long as the device is, to which `completions` has a
        // reference.
        unsafe { &(*self.device().context.as_ptr()).ops }
    }
}

impl Queue for VerbsQueue {
    fn endpoint(&self) -> Endpoint {
        let port = self.device().port;
        Endpoint {
            // SAFETY: the pair is there until the drop.
            queue: unsafe { self.pair.as_ref().number },
            sequence: self.sequence,
            lid: port.lid,
            mtu: port.mtu,
            reads: self.reads,
            gid: port.gid,
        }
    }

    fn connect(&mut self, peer: &Endpoint) -> Result<(), TransportError> {
        let port = self.device().port;
        let is_global = port.is_ethernet || peer.lid == 0;
        let mut attributes = ffi::QueueAttributes {
            qp_state: ffi::QPS_RTR,
            path_mtu: c_uint::from(port.mtu.min(peer.mtu)),
            dest_qp_num: peer.queue,
            rq_psn: peer.sequence,
            max_dest_rd_atomic: self.reads,
            min_rnr_timer: RNR_TIMER,
            ..ffi::QueueAttributes::default()
        };
        attributes.ah_attr.port_num = port.number;
        attributes.ah_attr.dlid = peer.lid;
        attributes.ah_attr.is_global = u8::from(is_global);
        if is_global {
            // The wire has the bytes in this order, whatever the machine's is.
            let half = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| peer.gid[at + i]));
            attributes.ah_attr.grh = ffi::GlobalRoute {
                dgid: [half(0), half(8)],
                sgid_index: port.gid_index,
                hop_limit: HOP_LIMIT,
                ..ffi::GlobalRoute::default()
            };
        }
        let mask = ffi::QP_STATE
            | ffi::QP_AV
            | ffi::QP_PATH_MTU
            | ffi::QP_DEST_QPN
            | ffi::QP_RQ_PSN
            | ffi::QP_MAX_DEST_RD_ATOMIC
            | ffi::QP_MIN_RNR_TIMER;
        self.modify(&mut attributes, mask, "connect")?;
        let mut attributes = ffi::QueueAttributes {
            qp_state: ffi::QPS_RTS,
            sq_psn: self.sequence,
            timeout: self.timeout,
            retry_cnt: self.retries,
            rnr_retry: RNR_RETRIES,
            max_rd_atomic: self.reads.min(peer.reads),
            ..ffi::QueueAttributes::default()
        };
        let mask = ffi::QP_STATE
            | ffi::QP_TIMEOUT
            | ffi::QP_RETRY_CNT
            | ffi::QP_RNR_RETRY
            | ffi::QP_SQ_PSN
            | ffi::QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attributes, mask, "start")
    }

    unsafe fn post_receives(&mut self, requests: &[Receive]) -> Result<(), TransportError> {
        let (mut gathers, mut receives) = (
            std::mem::take(&mut self.gathers),
            std::mem::take(&mut self.receives),
        );
        gathers.clear();
        gathers.extend(requests.iter().map(|request| ffi::Gather {
            address: request.address as u64,
            length: request.len_bytes,
            lkey: request.key,
        }));
        receives.clear();
        receives.extend(requests.iter().zip(&mut gathers).map(|(request, gather)| {
            ffi::ReceiveRequest {
                wr_id: request_id(self.tag, request.index),
                next: ptr::null_mut(),
                sg_list: gather,
                num_sge: 1,
            }
        }));
        let first = receives.as_mut_ptr();
        for index in 1..receives.len() {
            receives[index - 1].next = first.wrapping_add(index);
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the requests are a list that ends, over memory that the caller leaves to the
        // device.
        let refused = unsafe {
            (self.operations().post_recv).map_or(NOT_SUPPORTED, |post| {
                post(self.pair.as_ptr(), first, &mut bad)
            })
        };
        (self.gathers, self.receives) = (gathers, receives);
        match refused {
            0 => Ok(()),
            errno => Err(failed("post receives to", &self.device().name, errno)),
        }
    }

    unsafe fn post_sends(&mut self, requests: &[Request]) -> Result<(), TransportError> {
        let (mut gathers, mut sends) = (
            std::mem::take(&mut self.gathers),
            std::mem::take(&mut self.sends),
        );
        gathers.clear();
        gathers.extend(requests.iter().map(gather_of));
        sends.clear();
        sends.extend(requests.iter().zip(&mut gathers).map(|(request, gather)| {
            let send = ffi::SendRequest {
                wr_id: request_id(self.tag, request.index),
                sg_list: gather,
                send_flags: if request.signalled {
                    ffi::SEND_SIGNALED
                } else {
                    0
                },
                ..ffi::SendRequest::EMPTY
            };
            self.fill(send, &request.work)
        }));
        let first = sends.as_mut_ptr();
        for index in 1..sends.len() {
            sends[index - 1].next = first.wrapping_add(index);
        }
        let mut bad = ptr::null_mut();
        // SAFETY: as for receives.
        let refused = unsafe {
            (self.operations().post_send).map_or(NOT_SUPPORTED, |post| {
                post(self.pair.as_ptr(), first, &mut bad)
            })
        };
        (self.gathers, self.sends) = (gathers, sends);
        match refused {
            0 => Ok(()),
            errno => Err(failed("post requests to", &self.device().name, errno)),
        }
    }

    fn stop(&mut self) {
        let mut attributes = ffi::QueueAttributes {
            qp_state: ffi::QPS_ERR,
            ..ffi::QueueAttributes::default()
        };
        // A pair that cannot even fail is destroyed next.
        let _ = self.modify(&mut attributes, ffi::QP_STATE, "stop");
    }
}

impl VerbsQueue {
    fn fill(&self, send: ffi::SendRequest, work: &Work) -> ffi::SendRequest {
        match *work {
            Work::Send {
                len_bytes, inline, ..
            } => ffi::SendRequest {
                opcode: ffi::WR_SEND,
                num_sge: 1,
                send_flags: send.send_flags
                    | if inline && len_bytes <= self.inline_bytes {
                        ffi::SEND_INLINE
                    } else {
                        0
                    },
                ..send
            },
            Work::Immediate(bits) => ffi::SendRequest {
                opcode: ffi::WR_RDMA_WRITE_WITH_IMM,
                sg_list: ptr::null_mut(),
                num_sge: 0,
                imm_data: bits.to_be(),
                ..send
            },
            Work::Read {
                remote_address,
                remote_key,
                ..
            } => ffi::SendRequest {
                opcode: ffi::WR_RDMA_READ,
                num_sge: 1,
                remote_address,
                rkey: remote_key,
                ..send
            },
        }
    }
}

impl Drop for VerbsQueue {
    fn drop(&mut self) {
        let device = self.device();
        // SAFETY: made by `new`, destroyed only here. All events about it are acknowledged where
        // they are taken.
        let number = unsafe {
            let number = self.pair.as_ref().number;
            (device.functions.ibv_destroy_qp)(self.pair.as_ptr());
            number
        };
        lock(&self.tags).remove(&number);
        let reserved = &self.completions.reserved;
        reserved.fetch_sub(self.reserved, Ordering::Relaxed);
    }
}

fn gather_of(request: &Request) -> ffi::Gather {
    match request.work {
        Work::Send {
            address,
            len_bytes,
            key,
            ..
        }
        | Work::Read {
            address,
            len_bytes,
            key,
            ..
        } => ffi::Gather {
            address: address as u64,
            length: len_bytes,
            lkey: key,
        },
        Work::Immediate(_) => ffi::Gather::default(),
    }
}

/// How long a peer waits that found no receive posted: 10 us. Credits see to it that this does not
/// happen.
const RNR_TIMER: u8 = 1;

/// And how often it tries again.
const RNR_RETRIES: u8 = 6;

const HOP_LIMIT: u8 = 64;

/// A driver without the operation: `EOPNOTSUPP`.
const NOT_SUPPORTED: c_int = 95;
