//! Calls whose results make the next ones, on the shard.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use grpcxx::{
    Buffer, CallResult, CallSpec, Client, CompletionHandler, GraphCall, Peer, Request,
    ShardContext, Tensor, Text,
};
use grpcxx_rpc::Envelope;

use crate::allocator::allocations;
use crate::baseline::Way;
use crate::cluster::{Cluster, ECHO, FED, SINKHOLE, Setting, tensor};
use crate::meter::{Measure, Meter, median};

/// What to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) way: Way,
    pub(crate) bytes: usize,
    pub(crate) connections: usize,
    /// Calls under way on each connection.
    pub(crate) depth: usize,
    pub(crate) calls: usize,
    /// Tensors that are produced at a time, before the first of them is asked for.
    pub(crate) ready: usize,
    /// Calls that are timed together.
    pub(crate) per_window: usize,
}

/// What came of it.
pub(crate) struct Outcome {
    pub(crate) measure: Measure,
    pub(crate) allocations_per_call: f64,
}

/// Keeps a load going until all its calls are done.
///
/// The thread that begins a batch writes everything before its first call; from then on only the
/// shard does. So loads and stores are enough: a lock would cost as much as a tenth of a call.
struct Storm {
    /// For ever, so that a call needs no reference of its own while this is handed over to it.
    peers: &'static [Peer],
    asking: Asking,
    /// The next step of the batch, and its end.
    next_step: AtomicI64,
    end_step: AtomicI64,
    under_way: AtomicUsize,
    /// When calls were made, in nanoseconds since `origin`, where one is made at a time. Elsewhere
    /// only the windows are timed: a look at the clock for each call would count as a part of it.
    is_timed: bool,
    origin: Instant,
    sent_ns: AtomicU64,
    /// Latencies of the present window.
    latencies_ns: Vec<AtomicU64>,
    left_in_window: AtomicUsize,
    /// The present window is not to be timed: in it the calls of a batch that go side by side
    /// begin.
    is_warm_up: AtomicBool,
    /// Windows of the present batch whose allocations do not count from now on.
    uncounted_windows: AtomicUsize,
    /// Allocations before the windows that count.
    allocated_before: AtomicU64,
    /// Absent while nothing is measured.
    meter: Mutex<Option<Meter>>,
    batch_done: Sender<()>,
}

/// Makes the requests.
enum Asking {
    Pull {
        /// Leaked, like the peers.
        key: &'static Text,
    },
    Push {
        handle: Text,
        name: Text,
        tensor: Tensor,
    },
    Function(GraphCall),
    Method(Envelope),
}

/// A load and what it runs against.
struct Run {
    cluster: Cluster,
    tensor: Tensor,
    storm: Arc<Storm>,
    done: Receiver<()>,
    load: Load,
}

/// Runs a load against a fresh cluster.
pub(crate) fn run(setting: Setting, load: Load) -> Outcome {
    let run = Run::start(setting, load);
    let storm = &run.storm;
    let per_batch = load.per_batch();
    let warm_up = load.warm_up();
    run.batch(0..warm_up);
    let windows = load.calls / load.per_window;
    *storm.meter() = Some(Meter::new(windows, load.per_window));
    let end = warm_up + load.calls as i64;
    let mut allocated = Vec::new();
    let mut next = warm_up;
    while next + per_batch <= end {
        allocated.push(run.batch(next..next + per_batch));
        next += per_batch;
    }
    let meter = storm.meter().take().expect("it was just there");
    Outcome {
        measure: meter.finish(),
        allocations_per_call: median(allocated),
    }
}

/// The same without a clock: all that is done is done for the calls.
pub(crate) fn run_unmeasured(setting: Setting, load: Load) {
    let run = Run::start(setting, load);
    let calls = load.calls as i64;
    for begin in (0..calls).step_by(load.per_batch() as usize) {
        run.batch(begin..(begin + load.per_batch()).min(calls));
    }
}

impl Run {
    fn start(setting: Setting, load: Load) -> Self {
        let cluster = Cluster::start(setting);
        let tensor = tensor(load.bytes);
        let name = Text::from(FED);
        let (batch_done, done) = channel();
        let storm = Arc::new(Storm {
            peers: cluster.peers(load.connections).leak(),
            asking: match load.way {
                Way::Pull => Asking::Pull {
                    key: Box::leak(Box::new(lasting(&cluster.key()))),
                },
                Way::Push => Asking::Push {
                    handle: Text::from(SINKHOLE),
                    name,
                    tensor: tensor.clone(),
                },
                Way::Function => {
                    cluster.serve_function(&name);
                    let call = GraphCall::new(ECHO).with_feed(name.clone(), tensor.clone());
                    Asking::Function(call.with_fetch(name))
                }
                Way::Method => Asking::Method(cluster.serve_method()),
            },
            next_step: AtomicI64::new(0),
            end_step: AtomicI64::new(0),
            under_way: AtomicUsize::new(0),
            is_timed: load.under_way() == 1,
            origin: Instant::now(),
            sent_ns: AtomicU64::new(0),
            latencies_ns: (0..load.per_window).map(|_| AtomicU64::new(0)).collect(),
            left_in_window: AtomicUsize::new(0),
            is_warm_up: AtomicBool::new(false),
            uncounted_windows: AtomicUsize::new(0),
            allocated_before: AtomicU64::new(0),
            meter: Mutex::new(None),
            batch_done,
        });
        Self {
            cluster,
            tensor,
            storm,
            done,
            load,
        }
    }

    /// Makes the calls of these steps. Returns how often memory was allocated for each whose
    /// window counts.
    fn batch(&self, steps: Range<i64>) -> f64 {
        if self.load.way == Way::Pull {
            self.cluster.produce(steps.clone(), &self.tensor);
        }
        let storm = &self.storm;
        let uncounted_windows = self.load.uncounted_windows();
        storm.uncounted_windows.store(uncounted_windows, Relaxed);
        storm.allocated_before.store(allocations(), Relaxed);
        let begun = steps.end - steps.start;
        storm.begin(&self.cluster.worker.client(), self.load.under_way(), steps);
        self.done.recv().expect("the batch ends");
        let counted = begun - (uncounted_windows * self.load.per_window) as i64;
        let allocated = allocations() - storm.allocated_before.load(Relaxed);
        allocated as f64 / counted as f64
    }
}

impl Load {
    pub(crate) fn under_way(&self) -> usize {
        self.connections * self.depth
    }

    fn per_batch(&self) -> i64 {
        match self.way {
            Way::Pull => self.ready.min(self.calls) as i64,
            // Nothing has to be there before.
            Way::Push | Way::Function | Way::Method => self.calls as i64,
        }
    }

    /// Windows of each batch whose allocations do not count: calls but receives begin in requests
    /// of their own, from another thread, if several go side by side.
    fn uncounted_windows(&self) -> usize {
        match (self.under_way(), self.way) {
            (1, _) | (_, Way::Pull) => 0,
            (_, Way::Push | Way::Function | Way::Method) => 8,
        }
    }

    /// Tables, pools and queues grow to their working size first.
    fn warm_up(&self) -> i64 {
        match self.bytes {
            0..=4096 => (8 * self.under_way()).max(1024) as i64,
            _ => 2,
        }
    }
}

impl Storm {
    fn meter(&self) -> MutexGuard<'_, Option<Meter>> {
        self.meter.lock().expect("no panic")
    }

    /// Makes the first calls of a batch. The token of each is the place of its peer.
    fn begin(self: &Arc<Self>, client: &Client, under_way: usize, steps: Range<i64>) {
        let count = under_way.min(steps.clone().count());
        let first = steps.start;
        self.next_step.store(first + count as i64, Relaxed);
        self.end_step.store(steps.end, Relaxed);
        self.under_way.store(count, Relaxed);
        (self.left_in_window).store(self.latencies_ns.len(), Relaxed);
        self.is_warm_up.store(under_way > 1, Relaxed);
        if let Some(meter) = &mut *self.meter() {
            meter.begin_window();
        }
        self.sent_ns.store(self.now_ns(), Relaxed);
        for number in 0..count {
            let request = self.asking.request(first + number as i64);
            let handler: Arc<dyn CompletionHandler> = Arc::clone(self) as _;
            let token = number * self.peers.len() / under_way;
            client
                .submit(
                    CallSpec::new(&self.peers[token], request),
                    handler,
                    token as u64,
                )
                .expect("room in the inbox");
        }
    }

    /// Notes the end of a call.
    #[inline(always)]
    fn note(&self) {
        let left = self.left_in_window.load(Relaxed) - 1;
        self.left_in_window.store(left, Relaxed);
        if self.is_timed {
            let latency_ns = self.now_ns() - self.sent_ns.load(Relaxed);
            self.latencies_ns[left].store(latency_ns, Relaxed);
        }
        if left == 0 {
            self.end_window();
        }
    }

    #[inline(never)]
    fn end_window(&self) {
        (self.left_in_window).store(self.latencies_ns.len(), Relaxed);
        let is_warm_up = self.is_warm_up.load(Relaxed);
        self.is_warm_up.store(false, Relaxed);
        let uncounted_windows = self.uncounted_windows.load(Relaxed);
        if uncounted_windows > 0 {
            (self.uncounted_windows).store(uncounted_windows - 1, Relaxed);
            self.allocated_before.store(allocations(), Relaxed);
        }
        if let Some(meter) = &mut *self.meter() {
            if is_warm_up {
                return meter.begin_window();
            }
            let latencies_ns = self.latencies_ns.iter().map(|ns| ns.load(Relaxed));
            meter.note_window(Instant::now(), latencies_ns);
        }
    }

    /// The step of the next request, if the batch has one.
    #[inline(always)]
    fn next(&self) -> Option<i64> {
        let step_id = self.next_step.load(Relaxed);
        if step_id == self.end_step.load(Relaxed) {
            let left = self.under_way.load(Relaxed) - 1;
            self.under_way.store(left, Relaxed);
            if left == 0 {
                // The bench waits for this and nothing else.
                let _ = self.batch_done.send(());
            }
            return None;
        }
        self.next_step.store(step_id + 1, Relaxed);
        if self.is_timed {
            self.sent_ns.store(self.now_ns(), Relaxed);
        }
        Some(step_id)
    }

    fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    /// Notes the end of a call, and makes the next one.
    #[inline(always)]
    fn go_on(self: Arc<Self>, token: u64, shard: &mut ShardContext<'_>) {
        self.note();
        if let Some(step_id) = self.next() {
            let peer = &self.peers[token as usize];
            match &self.asking {
                Asking::Pull { key } => {
                    shard.receive(peer, step_id, key, None, self, token);
                }
                Asking::Function(call) => shard.run(peer, call, None, self.clone(), token),
                Asking::Method(envelope) => {
                    shard.call_path(peer, envelope, None, self.clone(), token);
                }
                Asking::Push { .. } => {
                    let request = self.asking.request(step_id);
                    shard.submit(CallSpec::new(peer, request), self, token);
                }
            }
        }
    }
}

impl CompletionHandler for Storm {
    fn allocates(&self, _token: u64) -> bool {
        false
    }

    fn on_complete(self: Arc<Self>, token: u64, result: CallResult, shard: &mut ShardContext<'_>) {
        assert!(result.is_ok(), "a call failed: {result:?}");
        self.go_on(token, shard);
    }

    fn on_tensor(self: Arc<Self>, token: u64, _tensor: Tensor, shard: &mut ShardContext<'_>) {
        self.go_on(token, shard);
    }
}

impl Asking {
    #[inline(always)]
    fn request(&self, step_id: i64) -> Request {
        match self {
            Self::Pull { key } => Request::RecvTensor {
                step_id,
                key: Text::clone(key),
            },
            Self::Push {
                handle,
                name,
                tensor,
            } => Request::StarRunGraph(Box::new(GraphCall {
                graph_handle: handle.clone(),
                step_id: step_id as u64,
                feeds: vec![(name.clone(), tensor.clone())].into(),
                ..GraphCall::default()
            })),
            Self::Function(call) => Request::StarRunGraph(Box::new(call.clone())),
            Self::Method(envelope) => Request::Unary(Box::new(envelope.clone())),
        }
    }
}

/// The same key for ever, so that no call counts a reference to it.
fn lasting(key: &Text) -> Text {
    let bytes: &'static [u8] = key.as_bytes().to_vec().leak();
    Text::try_from(Buffer::from(bytes)).expect("the bytes of a text")
}
