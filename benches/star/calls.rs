//! Calls whose results make the next ones, on the shard.

use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use grpcxx::{CallResult, CallSink, Client, GraphCall, Peer, Request, ShardContext, Tensor, Text};

use crate::allocator::allocations;
use crate::baseline::Way;
use crate::cluster::{Cluster, SINKHOLE, Setting, tensor};
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
    /// Calls that are timed together.
    pub(crate) per_window: usize,
}

/// What came of it.
pub(crate) struct Outcome {
    pub(crate) measure: Measure,
    pub(crate) allocations_per_call: f64,
}

/// Keeps a load going until all its calls are done.
struct Storm {
    peers: Vec<Peer>,
    depth: usize,
    progress: Mutex<Progress>,
}

struct Progress {
    asking: Asking,
    /// Calls of the present batch that are yet to begin: their steps.
    ahead: Range<i64>,
    under_way: usize,
    sent_at: Vec<Instant>,
    /// Absent while nothing is measured.
    meter: Option<Meter>,
    batch_done: Sender<()>,
}

/// Makes the requests.
enum Asking {
    Pull {
        key: Text,
    },
    Push {
        handle: Text,
        name: Text,
        tensor: Tensor,
    },
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
    storm.progress().meter = Some(Meter::new(windows, load.per_window));
    let end = warm_up + load.calls as i64;
    let mut allocated = Vec::new();
    let mut next = warm_up;
    while next + per_batch <= end {
        allocated.push(run.batch(next..next + per_batch) as f64 / per_batch as f64);
        next += per_batch;
    }
    let meter = storm.progress().meter.take().expect("it was just there");
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
        let (batch_done, done) = channel();
        let storm = Arc::new(Storm {
            peers: cluster.peers(load.connections),
            depth: load.depth,
            progress: Mutex::new(Progress {
                asking: match load.way {
                    Way::Pull => Asking::Pull { key: cluster.key() },
                    Way::Push => Asking::Push {
                        handle: Text::from(SINKHOLE),
                        name: Text::from("pushed"),
                        tensor: tensor.clone(),
                    },
                },
                ahead: 0..0,
                under_way: 0,
                sent_at: vec![Instant::now(); load.under_way()],
                meter: None,
                batch_done,
            }),
        });
        Self {
            cluster,
            tensor,
            storm,
            done,
            load,
        }
    }

    /// Makes the calls of these steps, and says how often memory was allocated for them.
    fn batch(&self, steps: Range<i64>) -> u64 {
        if self.load.way == Way::Pull {
            self.cluster.produce(steps.clone(), &self.tensor);
        }
        let allocated = allocations();
        self.storm.begin(&self.cluster.worker.client(), steps);
        self.done.recv().expect("the batch ends");
        allocations() - allocated
    }
}

impl Load {
    fn under_way(&self) -> usize {
        self.connections * self.depth
    }

    /// Batches are short so that what is produced is still in the caches when it is asked for.
    fn per_batch(&self) -> i64 {
        BATCH_CALLS.min(self.calls) as i64
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
    fn progress(&self) -> std::sync::MutexGuard<'_, Progress> {
        self.progress.lock().expect("no panic")
    }

    fn peer(&self, token: usize) -> &Peer {
        &self.peers[token / self.depth]
    }

    /// Makes the first calls of a batch.
    fn begin(self: &Arc<Self>, client: &Client, steps: Range<i64>) {
        let tokens = {
            let mut progress = self.progress();
            progress.ahead = steps;
            if let Some(meter) = &mut progress.meter {
                meter.begin_window();
            }
            // Counted first, so that the batch is not over before all of them have begun.
            let count = progress.sent_at.len().min(progress.ahead.clone().count());
            progress.under_way = count;
            0..count
        };
        for token in tokens {
            let request = self.progress().next(token, Instant::now());
            let request = request.expect("calls to make");
            let sink: Arc<dyn CallSink> = Arc::clone(self) as _;
            client
                .call_with(self.peer(token), request, None, sink, token as u64)
                .expect("room in the inbox");
        }
    }
}

impl CallSink for Storm {
    fn finished(self: Arc<Self>, token: u64, result: CallResult, shard: &mut ShardContext<'_>) {
        assert!(result.is_ok(), "a call failed: {result:?}");
        drop(result);
        let request = self.progress().step(token as usize);
        if let Some(request) = request {
            let peer = self.peer(token as usize).clone();
            shard.call(&peer, request, None, self, token);
        }
    }
}

impl Progress {
    /// Notes the end of a call and begins the next. One look at the clock serves both.
    fn step(&mut self, token: usize) -> Option<Request> {
        let now = Instant::now();
        if let Some(meter) = &mut self.meter {
            meter.note(now, now - self.sent_at[token]);
        }
        let request = self.next(token, now);
        if request.is_none() {
            self.under_way -= 1;
            if self.under_way == 0 {
                // The bench waits for this and nothing else.
                let _ = self.batch_done.send(());
            }
        }
        request
    }

    fn next(&mut self, token: usize, now: Instant) -> Option<Request> {
        let step_id = self.ahead.next()?;
        self.sent_at[token] = now;
        Some(match &self.asking {
            Asking::Pull { key } => Request::RecvTensor {
                step_id,
                key: key.clone(),
            },
            Asking::Push {
                handle,
                name,
                tensor,
            } => Request::StarRunGraph(Box::new(GraphCall {
                graph_handle: handle.clone(),
                step_id: step_id as u64,
                feeds: vec![(name.clone(), tensor.clone())],
                ..GraphCall::default()
            })),
        })
    }
}

const BATCH_CALLS: usize = 1 << 14;
