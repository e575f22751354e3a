//! Calls whose results make the next ones, on the shard.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use grpcxx::{CallResult, CallSink, GraphCall, Peer, Request, ShardContext, Tensor, Text};

use crate::allocator::allocations;
use crate::baseline::Way;
use crate::cluster::{Cluster, SINKHOLE, Setting, tensor};
use crate::meter::{Measure, Meter};

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
    begun: usize,
    done: usize,
    warm_up: usize,
    total: usize,
    sent_at: Vec<Instant>,
    /// Taken at the end.
    meter: Option<Meter>,
    allocations_at_start: u64,
    outcome: Sender<Outcome>,
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

/// Runs a load against a fresh cluster.
pub(crate) fn run(setting: Setting, load: Load) -> Outcome {
    let cluster = Cluster::start(setting);
    let tensor = tensor(load.bytes);
    let warm_up = (load.calls / 10).max(2 * load.connections * load.depth);
    let total = warm_up + load.calls;
    let asking = match load.way {
        Way::Pull => {
            cluster.produce(0..total as i64, &tensor);
            Asking::Pull { key: cluster.key() }
        }
        Way::Push => Asking::Push {
            handle: Text::from(SINKHOLE),
            name: Text::from("pushed"),
            tensor,
        },
    };
    let (outcome, ended) = channel();
    let under_way = load.connections * load.depth;
    let storm = Arc::new(Storm {
        peers: cluster.peers(load.connections),
        depth: load.depth,
        progress: Mutex::new(Progress {
            asking,
            begun: 0,
            done: 0,
            warm_up,
            total,
            sent_at: vec![Instant::now(); under_way],
            meter: Some(Meter::new(load.calls / load.per_window, load.per_window)),
            allocations_at_start: 0,
            outcome,
        }),
    });
    for token in 0..under_way.min(total) {
        let request = storm.progress().next(token).expect("calls to make");
        let sink: Arc<dyn CallSink> = Arc::clone(&storm) as _;
        let client = cluster.worker.client();
        client
            .call_with(storm.peer(token), request, None, sink, token as u64)
            .expect("room in the inbox");
    }
    ended.recv().expect("the run ends")
}

impl Storm {
    fn progress(&self) -> std::sync::MutexGuard<'_, Progress> {
        self.progress.lock().expect("no panic")
    }

    fn peer(&self, token: usize) -> &Peer {
        &self.peers[token / self.depth]
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
    /// Notes the end of a call and begins the next.
    fn step(&mut self, token: usize) -> Option<Request> {
        self.done += 1;
        let meter = self.meter.as_mut()?;
        if self.done > self.warm_up {
            let now = Instant::now();
            meter.note(now, now - self.sent_at[token]);
        } else if self.done == self.warm_up {
            self.allocations_at_start = allocations();
            meter.begin();
        }
        if self.done == self.total {
            let calls = (self.total - self.warm_up) as f64;
            let allocated = (allocations() - self.allocations_at_start) as f64;
            let meter = self.meter.take()?;
            // The bench waits for this and nothing else.
            let _ = self.outcome.send(Outcome {
                measure: meter.finish(),
                allocations_per_call: allocated / calls,
            });
        }
        self.next(token)
    }

    fn next(&mut self, token: usize) -> Option<Request> {
        if self.begun == self.total {
            return None;
        }
        let step_id = self.begun as i64;
        self.begun += 1;
        self.sent_at[token] = Instant::now();
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
