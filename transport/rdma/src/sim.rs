//! A device in software, inside of one thread: what real verbs do to links, with faults, and
//! without hardware.
//!
//! A [`SimFabric`] joins any number of [`SimAdapter`]s. Requests take time by the clock that polls
//! hand in, succeed in order, and touch memory when a device would: sends and reads copy when they
//! are carried out, not when they are posted. Memory that is not registered, or not any more, is
//! refused.

use std::cell::{RefCell, RefMut};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use grpcxx_memory::DeviceMemory;
use grpcxx_transport::{Time, TransportError};

use crate::adapter::{
    Adapter, AdapterLimits, Completion, Endpoint, Fault, Queue, QueueDepth, QueueTag, Receive,
    Registration, Request, RequestFailure,
};

mod options;
mod requests;

pub use options::SimFabricOptions;

/// The devices of a simulation and what joins them. Clones are handles of the same fabric.
#[derive(Clone)]
pub struct SimFabric {
    state: Rc<RefCell<State>>,
}

/// One device.
pub struct SimAdapter {
    fabric: SimFabric,
    index: usize,
}

/// A pair of queues of a [`SimAdapter`].
pub struct SimQueue {
    fabric: SimFabric,
    number: u32,
}

/// Memory that a [`SimAdapter`] knows.
pub struct SimRegistration {
    fabric: SimFabric,
    key: u32,
}

struct State {
    options: SimFabricOptions,
    random: fastrand::Rng,
    now: Time,
    adapters: Vec<Device>,
    queues: BTreeMap<u32, Pair>,
    regions: BTreeMap<u32, Known>,
    next_queue: u32,
    next_key: u32,
}

#[derive(Default)]
struct Device {
    completions: VecDeque<Completion>,
    faults: VecDeque<Fault>,
    is_removed: bool,
    registered_bytes: usize,
}

struct Known {
    adapter: usize,
    start: usize,
    len_bytes: usize,
    is_revoked: bool,
}

struct Pair {
    adapter: usize,
    tag: QueueTag,
    peer: Option<u32>,
    receives: VecDeque<Receive>,
    requests: VecDeque<Pending>,
    busy_until: Time,
    is_stopped: bool,
}

/// A request that is carried out at a time.
struct Pending {
    at: Time,
    request: Request,
    /// The peer has not answered, and will not be asked again.
    is_last_try: bool,
}

impl SimFabric {
    /// A fabric without devices.
    pub fn new(options: SimFabricOptions) -> Self {
        Self {
            state: Rc::new(RefCell::new(State {
                random: fastrand::Rng::with_seed(options.seed),
                options,
                now: Time::ZERO,
                adapters: Vec::new(),
                queues: BTreeMap::new(),
                regions: BTreeMap::new(),
                next_queue: 1,
                next_key: 1,
            })),
        }
    }

    /// One more device.
    pub fn adapter(&self) -> SimAdapter {
        let mut state = self.state();
        state.adapters.push(Device::default());
        SimAdapter {
            fabric: self.clone(),
            index: state.adapters.len() - 1,
        }
    }

    /// The earliest time at which a poll has something to do, if nothing is posted until then.
    /// Faults are looked for from time to time, so they have none.
    pub fn next_event_at(&self) -> Option<Time> {
        let state = self.state();
        if (state.adapters.iter()).any(|device| !device.completions.is_empty()) {
            return Some(state.now);
        }
        drop(state);
        self.next_request_at()
    }

    /// The earliest time at which a request is carried out.
    pub fn next_request_at(&self) -> Option<Time> {
        let state = self.state();
        let times = state.queues.values().filter_map(Pair::next_at);
        times.min()
    }

    /// Carries out what is due, for users that look at [`SimAdapter::has_events`] before they poll.
    pub fn advance(&self, now: Time) {
        self.state().run(now);
    }

    /// Queues that exist.
    pub fn queue_count(&self) -> usize {
        self.state().queues.len()
    }

    /// Registrations that exist.
    pub fn registration_count(&self) -> usize {
        self.state().regions.len()
    }

    fn state(&self) -> RefMut<'_, State> {
        self.state.borrow_mut()
    }
}

impl SimAdapter {
    /// Whether a poll, or a look for faults, has something to tell now.
    pub fn has_events(&self) -> bool {
        let state = self.fabric.state();
        let device = &state.adapters[self.index];
        !device.completions.is_empty() || !device.faults.is_empty()
    }

    /// Takes the device away: nothing completes any more, and users hear of it.
    pub fn remove(&mut self) {
        let mut state = self.fabric.state();
        let device = &mut state.adapters[self.index];
        device.is_removed = true;
        device.completions.clear();
        device
            .faults
            .push_back(Fault::Device("the device was removed".to_owned()));
    }

    /// Lets peers read none of this device's memory any more, as if it had been registered no
    /// longer.
    pub fn revoke_all(&mut self) {
        let mut state = self.fabric.state();
        let index = self.index;
        for known in state.regions.values_mut() {
            known.is_revoked |= known.adapter == index;
        }
    }

    /// Drops completions, as a queue does that is overrun.
    pub fn overrun(&mut self) {
        let mut state = self.fabric.state();
        let device = &mut state.adapters[self.index];
        device.completions.clear();
        device.faults.push_back(Fault::Completions {
            what: "a completion queue was overrun",
        });
    }
}

impl Adapter for SimAdapter {
    type Queue = SimQueue;
    type Registration = SimRegistration;

    fn name(&self) -> &str {
        "simulated"
    }

    fn limits(&self) -> AdapterLimits {
        self.fabric.state().options.limits
    }

    fn register(&self, start: usize, len_bytes: usize) -> Result<SimRegistration, TransportError> {
        let mut state = self.fabric.state();
        let lockable_bytes = state.options.lockable_bytes;
        let device = &mut state.adapters[self.index];
        if device.registered_bytes.saturating_add(len_bytes) > lockable_bytes {
            return Err(TransportError {
                operation: format!("register {len_bytes} bytes"),
                errno: 12,
                message: "no more memory may be locked".to_owned(),
            });
        }
        device.registered_bytes += len_bytes;
        let key = state.next_key;
        state.next_key += 1;
        let known = Known {
            adapter: self.index,
            start,
            len_bytes,
            is_revoked: false,
        };
        state.regions.insert(key, known);
        drop(state);
        Ok(SimRegistration {
            fabric: self.fabric.clone(),
            key,
        })
    }

    fn register_device(
        &self,
        memory: &dyn DeviceMemory,
    ) -> Result<SimRegistration, TransportError> {
        let region = memory.region();
        if !self.fabric.state().options.has_dma_buf {
            return Err(TransportError {
                operation: format!("register {} bytes of device memory", region.len),
                errno: 95,
                message: "the simulated device cannot".to_owned(),
            });
        }
        self.register(region.base, region.len)
    }

    fn open_queue(&mut self, tag: QueueTag, _: QueueDepth) -> Result<SimQueue, TransportError> {
        let mut state = self.fabric.state();
        if state.adapters[self.index].is_removed {
            return Err(TransportError {
                operation: "create a queue pair".to_owned(),
                errno: 19,
                message: "the device was removed".to_owned(),
            });
        }
        let number = state.next_queue;
        state.next_queue += 1;
        let pair = Pair {
            adapter: self.index,
            tag,
            peer: None,
            receives: VecDeque::new(),
            requests: VecDeque::new(),
            busy_until: Time::ZERO,
            is_stopped: false,
        };
        state.queues.insert(number, pair);
        drop(state);
        Ok(SimQueue {
            fabric: self.fabric.clone(),
            number,
        })
    }

    fn poll(&mut self, now: Time, limit: usize, completions: &mut Vec<Completion>) {
        let mut state = self.fabric.state();
        state.run(now);
        let device = &mut state.adapters[self.index];
        let count = device.completions.len().min(limit);
        completions.extend(device.completions.drain(..count));
    }

    fn next_fault(&mut self) -> Option<Fault> {
        self.fabric.state().adapters[self.index].faults.pop_front()
    }

    fn arm(&mut self) {}

    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [None, None]
    }
}

impl Registration for SimRegistration {
    fn local_key(&self) -> u32 {
        self.key
    }

    fn remote_key(&self) -> u32 {
        self.key
    }
}

impl Drop for SimRegistration {
    fn drop(&mut self) {
        let mut state = self.fabric.state();
        if let Some(known) = state.regions.remove(&self.key) {
            state.adapters[known.adapter].registered_bytes -= known.len_bytes;
        }
    }
}

impl Queue for SimQueue {
    fn endpoint(&self) -> Endpoint {
        Endpoint {
            queue: self.number,
            sequence: self.number,
            lid: 0,
            mtu: 5,
            reads: self.fabric.state().options.limits.reads_per_queue,
            gid: [7; 16],
        }
    }

    fn connect(&mut self, peer: &Endpoint) -> Result<(), TransportError> {
        if let Some(pair) = self.fabric.state().queues.get_mut(&self.number) {
            pair.peer = Some(peer.queue);
        }
        Ok(())
    }

    unsafe fn post_receives(&mut self, requests: &[Receive]) -> Result<(), TransportError> {
        if let Some(pair) = self.fabric.state().queues.get_mut(&self.number) {
            pair.receives.extend(requests);
        }
        Ok(())
    }

    unsafe fn post_sends(&mut self, requests: &[Request]) -> Result<(), TransportError> {
        let mut state = self.fabric.state();
        for request in requests {
            state.post(self.number, *request);
        }
        Ok(())
    }

    fn stop(&mut self) {
        self.fabric
            .state()
            .fail(self.number, RequestFailure::FLUSHED);
    }
}

impl Drop for SimQueue {
    fn drop(&mut self) {
        self.fabric.state().queues.remove(&self.number);
    }
}

impl Pair {
    fn next_at(&self) -> Option<Time> {
        self.requests.front().map(|pending| pending.at)
    }
}

/// Copies as a device does.
fn copy(from: usize, to: usize, len_bytes: u32) {
    let from = std::ptr::with_exposed_provenance::<u8>(from);
    let to = std::ptr::with_exposed_provenance_mut::<u8>(to);
    // SAFETY: both places are registered or belong to a posted request, so whoever posted it keeps
    // the memory, does not write what is read, and neither reads nor writes what is written.
    unsafe { std::ptr::copy(from, to, len_bytes as usize) };
}
