use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use grpcxx_memory::DeviceMemory;
use grpcxx_transport::{Time, TransportError};

use super::completions::request_of;
use super::device::Unavailable;
use super::ffi;
use super::open::{OpenDevice, VerbsRegistration, last_error};
use super::queue::VerbsQueue;
use crate::adapter::{
    Adapter, AdapterLimits, Completion, CompletionEvent, Fault, QueueDepth, QueueTag,
    RequestFailure,
};
use crate::options::RdmaOptions;

/// A device in use by one shard.
pub struct VerbsAdapter {
    device: Arc<OpenDevice>,
    queues: Vec<Arc<CompletionQueue>>,
    tags: Arc<Mutex<HashMap<u32, QueueTag>>>,
    batch: Vec<ffi::WorkCompletion>,
    options: RdmaOptions,
}

/// A completion queue with as many links as it can never be overrun by.
pub(super) struct CompletionQueue {
    pub(super) device: Arc<OpenDevice>,
    pub(super) queue: NonNull<ffi::CompletionQueue>,
    entries: u32,
    pub(super) reserved: AtomicU32,
}

// SAFETY: libibverbs lets any thread use a completion queue.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above; each of its calls may run beside others.
unsafe impl Sync for CompletionQueue {}

impl VerbsAdapter {
    /// Opens the device and port that the options name, or the first that works.
    ///
    /// # Errors
    /// Why RDMA cannot be used here.
    pub fn open(options: &RdmaOptions) -> Result<Self, Unavailable> {
        let mut empty = Vec::with_capacity(BATCH);
        empty.resize(BATCH, ffi::WorkCompletion::default());
        Ok(Self {
            device: Arc::new(OpenDevice::open(options)?),
            queues: Vec::new(),
            tags: Arc::default(),
            batch: empty,
            options: options.clone().checked(),
        })
    }

    /// Whether device memory can be registered by its dma-buf, as far as the library can tell.
    pub fn has_dmabuf() -> bool {
        super::library::library().is_ok_and(|library| library.register_dmabuf.is_some())
    }

    /// A completion queue with room for so many entries more.
    fn completion_queue(&mut self, needed: u32) -> Result<Arc<CompletionQueue>, TransportError> {
        if let Some(queue) = (self.queues.iter())
            .find(|queue| queue.reserved.load(Ordering::Relaxed) + needed <= queue.entries)
        {
            return Ok(Arc::clone(queue));
        }
        let entries =
            (self.options.completion_entries.max(needed)).min(self.device.completions_max);
        let queue = Arc::new(CompletionQueue::new(&self.device, entries)?);
        if queue.entries < needed {
            return Err(TransportError {
                operation: format!(
                    "create a completion queue of RDMA device {}",
                    self.device.name
                ),
                errno: 0,
                message: format!(
                    "a link needs {needed} entries, the device allows {}",
                    queue.entries
                ),
            });
        }
        self.queues.push(Arc::clone(&queue));
        Ok(queue)
    }
}

impl Adapter for VerbsAdapter {
    type Queue = VerbsQueue;
    type Registration = VerbsRegistration;

    fn name(&self) -> &str {
        &self.device.name
    }

    fn limits(&self) -> AdapterLimits {
        self.device.limits
    }

    fn register(
        &self,
        start: usize,
        len_bytes: usize,
    ) -> Result<VerbsRegistration, TransportError> {
        self.device.register(start, len_bytes)
    }

    fn register_device(
        &self,
        memory: &dyn DeviceMemory,
    ) -> Result<VerbsRegistration, TransportError> {
        self.device.register_device(memory)
    }

    fn open_queue(
        &mut self,
        tag: QueueTag,
        depth: QueueDepth,
    ) -> Result<VerbsQueue, TransportError> {
        let reserved = depth.receives + depth.sends;
        let completions = self.completion_queue(reserved)?;
        let queue = VerbsQueue::new(completions, tag, depth, reserved, &self.options, &self.tags)?;
        Ok(queue)
    }

    fn poll(&mut self, _: Time, limit: usize, completions: &mut Vec<Completion>) {
        let mut left = limit;
        for queue in &self.queues {
            while left > 0 {
                let asked = left.min(BATCH);
                let count = queue.poll(&mut self.batch[..asked]);
                completions.extend(self.batch[..count].iter().map(completion_of));
                left -= count;
                if count < asked {
                    break;
                }
            }
        }
    }

    fn next_fault(&mut self) -> Option<Fault> {
        loop {
            let mut event = ffi::AsyncEvent {
                element: 0,
                event_type: 0,
            };
            let functions = self.device.functions;
            // SAFETY: the context is open; its descriptor does not block, so the call returns.
            let refused = unsafe {
                (functions.ibv_get_async_event)(self.device.context.as_ptr(), &mut event)
            };
            if refused != 0 {
                return None;
            }
            let fault = self.fault_of(&event);
            // SAFETY: the event is the one taken above, acknowledged once. Nothing refers to its
            // element after.
            unsafe { (functions.ibv_ack_async_event)(&mut event) };
            if fault.is_some() {
                return fault;
            }
        }
    }

    fn arm(&mut self) {
        let functions = self.device.functions;
        loop {
            let (mut queue, mut user) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the channel is open and does not block. Each event is acknowledged at once,
            // so that no queue waits for it when it is destroyed.
            unsafe {
                let channel = self.device.channel.as_ptr();
                if (functions.ibv_get_cq_event)(channel, &mut queue, &mut user) != 0 {
                    break;
                }
                (functions.ibv_ack_cq_events)(queue, 1);
            }
        }
        for queue in &self.queues {
            queue.arm();
        }
    }

    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; 2] {
        self.device.descriptors().map(Some)
    }
}

impl VerbsAdapter {
    fn fault_of(&self, event: &ffi::AsyncEvent) -> Option<Fault> {
        let what = match event.event_type {
            ffi::EVENT_CQ_ERR => {
                return Some(Fault::Completions {
                    what: "a completion queue was overrun",
                });
            }
            ffi::EVENT_DEVICE_FATAL => {
                return Some(Fault::Device("the device is gone or failed".to_owned()));
            }
            ffi::EVENT_QP_FATAL => "the queue pair failed",
            ffi::EVENT_QP_REQ_ERR => "the peer's request was invalid",
            ffi::EVENT_QP_ACCESS_ERR => "the peer's request broke the rules of access",
            ffi::EVENT_PORT_ERR => {
                tracing::warn!(device = self.device.name, "the RDMA port is down");
                return None;
            }
            _ => return None,
        };
        let pair = ptr::with_exposed_provenance::<ffi::QueuePair>(event.element);
        // SAFETY: the event is about a queue pair, which cannot be destroyed before the event is
        // acknowledged.
        let number = unsafe { pair.as_ref()?.number };
        let tag = *lock(&self.tags).get(&number)?;
        Some(Fault::Queue { tag, what })
    }
}

impl CompletionQueue {
    fn new(device: &Arc<OpenDevice>, entries: u32) -> Result<Self, TransportError> {
        // SAFETY: context and channel are open.
        let queue = unsafe {
            (device.functions.ibv_create_cq)(
                device.context.as_ptr(),
                c_int::try_from(entries).unwrap_or(c_int::MAX),
                ptr::null_mut(),
                device.channel.as_ptr(),
                0,
            )
        };
        let queue = NonNull::new(queue)
            .ok_or_else(|| last_error("create a completion queue of", &device.name))?;
        Ok(Self {
            device: Arc::clone(device),
            queue,
            entries,
            reserved: AtomicU32::new(0),
        })
    }

    /// Takes completions into `batch` and returns how many.
    fn poll(&self, batch: &mut [ffi::WorkCompletion]) -> usize {
        // SAFETY: the queue is there, and the batch has room for what is asked for.
        let count = unsafe {
            let poll_cq = self.device.context.as_ref().ops.poll_cq;
            poll_cq.map_or(0, |poll| {
                poll(
                    self.queue.as_ptr(),
                    batch.len() as c_int,
                    batch.as_mut_ptr(),
                )
            })
        };
        usize::try_from(count).unwrap_or(0).min(batch.len())
    }

    fn arm(&self) {
        // SAFETY: the queue is there.
        unsafe {
            if let Some(notify) = self.device.context.as_ref().ops.req_notify_cq {
                notify(self.queue.as_ptr(), 0);
            }
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: no pair of queues uses it: each has a reference to `self`. All its events are
        // acknowledged.
        unsafe { (self.device.functions.ibv_destroy_cq)(self.queue.as_ptr()) };
    }
}

/// The links by the numbers of their pairs of queues.
pub(super) fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

fn completion_of(done: &ffi::WorkCompletion) -> Completion {
    let (tag, index) = request_of(done.wr_id);
    let event = match (done.status, done.opcode) {
        (0, ffi::WC_RECV) => CompletionEvent::Message {
            index,
            len_bytes: done.byte_len,
        },
        (0, ffi::WC_RECV_RDMA_WITH_IMM) => CompletionEvent::Immediate {
            index,
            bits: u32::from_be(done.imm_data),
        },
        (0, _) => CompletionEvent::Done,
        (status, _) => CompletionEvent::Failed(RequestFailure(status)),
    };
    Completion { tag, event }
}

/// Completions that one call takes.
const BATCH: usize = 32;
