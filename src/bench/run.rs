use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use grpcxx_memory::Buffer;
use grpcxx_rpc::{Code, Method, Request, Status};
use grpcxx_runtime::{Engine, EngineError, EngineOptions, Peer, PeerState, StartReport};
use quanta::Instant;

use super::floor::{self, Floor};
use super::lane::{Event, Lane, Load, Recorder};
use super::options::RunOptions;
use super::report::Measured;
use super::steps::StepPlan;
use super::usage;
use super::wire::{self, Opening};

/// The side of a bench that calls.
pub struct BenchClient {
    engine: Engine,
    servers: Vec<String>,
}

/// What a run came to.
#[derive(Debug)]
pub struct Outcome {
    /// The figures.
    pub measured: Measured,
    /// The 99th percentile of each connection in microseconds, if asked for; connections without a step have
    /// none.
    pub p99_us_by_connection: Vec<Option<f64>>,
}

impl BenchClient {
    /// Starts an engine for calls to `servers`, each `host:port`.
    ///
    /// # Errors
    /// What the engine could not have.
    pub fn start(mut options: EngineOptions, servers: Vec<String>) -> Result<Self, EngineError> {
        options.listen = None;
        options.service = None;
        Ok(Self {
            engine: Engine::start(options)?,
            servers,
        })
    }

    /// What was chosen at start.
    pub fn start_report(&self) -> &StartReport {
        self.engine.start_report()
    }

    /// What carries the first connection now: `tcp`, `shm` or `rdma`.
    ///
    /// # Errors
    /// The engine has stopped.
    pub fn medium(&self) -> Result<&'static str, Status> {
        let peer = self.engine.client().peer(&self.servers[0])?;
        Ok(self.inspect(&peer)?.medium)
    }

    /// Makes the connections that a run with as many will use, and waits until `medium` carries all of them.
    ///
    /// # Errors
    /// As of [`BenchClient::connect`]; `UNAVAILABLE` if a connection has not moved in `timeout`, with what is known of
    /// why.
    pub fn connect_over(
        &self,
        connections: usize,
        medium: &str,
        timeout: Duration,
    ) -> Result<(), Status> {
        self.connect(connections)?;
        let end = Instant::now() + timeout;
        for peer in self.peers(connections)? {
            loop {
                let state = self.inspect(&peer)?;
                if state.medium == medium {
                    break;
                }
                if state.stays.is_some() || Instant::now() >= end {
                    let why = state.stays.unwrap_or_else(|| {
                        "both sides must have it; grpcxx status and the server's first line say what they have"
                            .to_owned()
                    });
                    return Err(Status::new(
                        Code::Unavailable,
                        format!("the connection stayed on {}: {why}", state.medium),
                    ));
                }
                thread::sleep(MOVE_CHECK);
            }
        }
        Ok(())
    }

    fn inspect(&self, peer: &Peer) -> Result<PeerState, Status> {
        let (told, heard) = channel();
        self.engine.client().inspect(peer, move |state| {
            // Whoever asks still waits.
            let _ = told.send(state);
        });
        heard
            .recv()
            .map_err(|_| Status::new(Code::Unavailable, "the engine has stopped"))
    }

    /// Makes the connections that a run with as many will use, and returns how long that took.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the system does not allow as many, else the first that failed.
    pub fn connect(&self, connections: usize) -> Result<Duration, Status> {
        usage::require_open_files(connections)
            .map_err(|text| Status::new(Code::InvalidArgument, text))?;
        let begin = Instant::now();
        self.greet(&self.peers(connections)?)?;
        Ok(begin.elapsed())
    }

    /// Connects, warms up, measures, and waits until nothing is under way.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the options cannot be run; else the first call that failed, with its connection.
    pub fn run(&self, options: &RunOptions) -> Result<Outcome, Status> {
        options
            .check()
            .map_err(|text| Status::new(Code::InvalidArgument, text))?;
        self.connect(options.connections)?;
        let peers = self.peers(options.connections)?;
        let sessions = self.open_sessions(&peers, options)?;
        let outcome = self.load(peers.clone(), &sessions, options);
        for (peer, session) in peers.iter().zip(&sessions) {
            let close = wire::ask(wire::CLOSE, Some(grpcxx_rpc::Tensor::scalar(*session)));
            // A server that is gone has no sessions left.
            let _ = self
                .engine
                .client()
                .call(peer, close, Some(QUESTION_TIME))
                .wait();
        }
        outcome
    }

    /// Measures what the machine can do at best for the same options, with the same threads, for `duration`
    /// each.
    ///
    /// # Errors
    /// The server cannot be reached, or is no server of a bench.
    pub fn floors(&self, options: &RunOptions, duration: Duration) -> Result<Vec<Floor>, Status> {
        options
            .check()
            .map_err(|text| Status::new(Code::InvalidArgument, text))?;
        let peer = self.engine.client().peer(&self.servers[0])?;
        floor::measure(&self.engine, &peer, options, duration)
    }

    /// The connections, taking turns among the servers.
    fn peers(&self, connections: usize) -> Result<Vec<Peer>, Status> {
        let servers = &self.servers;
        (0..connections)
            .map(|index| {
                let address = &servers[index % servers.len()];
                self.engine
                    .client()
                    .peer_over(address, index / servers.len())
            })
            .collect()
    }

    /// Says a word over each connection, over a bounded number at once, so that no listener's queue runs over.
    fn greet(&self, peers: &[Peer]) -> Result<(), Status> {
        let client = self.engine.client();
        let hello = |peer: &Peer| {
            let request = Request::Message {
                method: Method::GetStatus,
                body: Buffer::new(),
            };
            client.call(peer, request, Some(CONNECT_TIME))
        };
        futures_executor::block_on(async {
            let mut answers = stream::iter(peers.iter().map(hello)).buffer_unordered(DIALS_AT_ONCE);
            while let Some(answer) = answers.next().await {
                answer?;
            }
            Ok(())
        })
    }

    /// Prepares the tensors on each server; returns the numbers of the sessions in the order of the servers.
    fn open_sessions(&self, peers: &[Peer], options: &RunOptions) -> Result<Vec<i64>, Status> {
        let opening = Opening {
            payload: options.payload.clone(),
            needs_contents: options.op.pulls() || options.verify,
            verify: options.verify,
        };
        let text = serde_json::to_string(&opening)
            .map_err(|error| Status::new(Code::Internal, error.to_string()))?;
        let servers = &peers[..self.servers.len().min(peers.len())];
        servers
            .iter()
            .map(|peer| {
                let request = wire::ask(wire::OPEN, Some(wire::text_tensor(&text)?));
                let response = self
                    .engine
                    .client()
                    .call(peer, request, Some(OPEN_TIME))
                    .wait();
                response
                    .and_then(|response| wire::answer(&response))
                    .map_err(|status| not_a_bench(peer, status))
            })
            .collect()
    }

    fn load(
        &self,
        peers: Vec<Peer>,
        sessions: &[i64],
        options: &RunOptions,
    ) -> Result<Outcome, Status> {
        let control = peers[0].clone();
        let plan = StepPlan::new(options)?;
        let (events, heard) = channel();
        let slots = options.connections * options.depth;
        let begin = Instant::now();
        let from = begin + (options.duration / 8).clamp(WARM_UP_MIN, WARM_UP_MAX);
        let shards = self.engine.start_report().shards;
        let load = Arc::new(Load {
            plan,
            from,
            until: from + options.duration,
            expected_interval: options
                .rate
                .map(|rate| Duration::from_secs_f64(slots as f64 / rate)),
            recorders: (0..shards)
                .map(|_| Mutex::new(Recorder::default()))
                .collect(),
            has_measured: AtomicBool::new(false),
            failure: Mutex::new(None),
            is_failed: AtomicBool::new(false),
            running: AtomicUsize::new(slots),
            events,
        });
        let lanes: Vec<Arc<Lane>> = peers
            .into_iter()
            .enumerate()
            .map(|(index, peer)| {
                Arc::new(Lane {
                    peer,
                    session: sessions[index % sessions.len()],
                    index,
                    load: Arc::clone(&load),
                    state: Mutex::new(Lane::state(options.depth, options.by_connection)),
                })
            })
            .collect();
        let watch = self.watch_cpu(&load, control);
        match options.rate {
            None => self.start_all(&lanes, options.depth)?,
            Some(rate) => self.pace(&lanes, options.depth, rate, &load, &heard)?,
        }
        while heard.recv() != Ok(Event::Ended) {}
        let (cpu_client, cpu_server) = watch.join().unwrap_or_default();
        if let Some(status) = lock(&load.failure).take() {
            return Err(status);
        }
        let mut measured = collect(&load);
        measured.cpu_client = cpu_client;
        measured.cpu_server = cpu_server;
        Ok(Outcome {
            measured,
            p99_us_by_connection: if options.by_connection {
                lanes.iter().map(|lane| lane.own_p99_us()).collect()
            } else {
                Vec::new()
            },
        })
    }

    /// Begins as many steps as may be under way; each begins the next when it ends.
    fn start_all(&self, lanes: &[Arc<Lane>], depth: usize) -> Result<(), Status> {
        for shard in 0..self.engine.start_report().shards {
            let lanes: Vec<Arc<Lane>> = lanes
                .iter()
                .filter(|lane| lane.peer.shard() == shard)
                .cloned()
                .collect();
            self.engine.run_on(shard, move |context| {
                for lane in &lanes {
                    for slot in 0..depth {
                        lane.begin(slot, context);
                    }
                }
            })?;
        }
        Ok(())
    }

    /// Begins steps at their times, as long as there are free slots; late steps follow at once.
    fn pace(
        &self,
        lanes: &[Arc<Lane>],
        depth: usize,
        rate: f64,
        load: &Load,
        heard: &Receiver<Event>,
    ) -> Result<(), Status> {
        let mut free: Vec<(usize, usize)> = (0..depth)
            .rev()
            .flat_map(|slot| (0..lanes.len()).rev().map(move |lane| (lane, slot)))
            .collect();
        let begin = Instant::now();
        let mut begun = 0_u64;
        while !load.is_over(Instant::now()) {
            let due = begin + Duration::from_secs_f64(begun as f64 / rate);
            let wait = due.saturating_duration_since(Instant::now());
            match heard.recv_timeout(wait.max(Duration::from_micros(u64::from(free.is_empty())))) {
                Ok(Event::Free { lane, slot }) => free.push((lane, slot)),
                Ok(Event::Ended) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if Instant::now() < due {
                continue;
            }
            if let Some((index, slot)) = free.pop() {
                let lane = Arc::clone(&lanes[index]);
                let begin_step = move |context: &mut grpcxx_runtime::ShardContext<'_>| {
                    lane.begin(slot, context);
                };
                self.engine.run_on(lanes[index].peer.shard(), begin_step)?;
                begun += 1;
            }
        }
        for _ in 0..free.len() {
            load.end_slot();
        }
        // Those under way end as they come in.
        let mut open = lanes.len() * depth - free.len();
        while open > 0 && load.running.load(std::sync::atomic::Ordering::Acquire) > 0 {
            match heard.recv_timeout(QUESTION_TIME) {
                Ok(Event::Free { .. }) => {
                    load.end_slot();
                    open -= 1;
                }
                Ok(Event::Ended) => {
                    // The caller waits for this word.
                    let _ = load.events.send(Event::Ended);
                    return Ok(());
                }
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// CPU times of client and server while steps are measured.
    fn watch_cpu(
        &self,
        load: &Arc<Load>,
        control: Peer,
    ) -> thread::JoinHandle<(Duration, Duration)> {
        let client = self.engine.client();
        let load = Arc::clone(load);
        thread::spawn(move || {
            let sample = |at: Instant| {
                thread::sleep(at.saturating_duration_since(Instant::now()));
                let server = floor::server_seconds(&client, &control).unwrap_or_default();
                (usage::cpu_time(), server)
            };
            let before = sample(load.from);
            let after = sample(load.until);
            let server = Duration::try_from_secs_f64(after.1 - before.1).unwrap_or_default();
            (after.0.saturating_sub(before.0), server)
        })
    }
}

impl fmt::Debug for BenchClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BenchClient")
            .field("servers", &self.servers)
            .finish_non_exhaustive()
    }
}

fn collect(load: &Load) -> Measured {
    let mut total = Measured::default();
    let (mut first, mut last): (Option<Instant>, Option<Instant>) = (None, None);
    for recorder in &load.recorders {
        let recorder = lock(recorder);
        // Both histograms grow by themselves and have the same digits.
        let _ = total.latency.add(&recorder.measured.latency);
        total.steps += recorder.measured.steps;
        total.calls += recorder.measured.calls;
        first = first.into_iter().chain(recorder.first).min();
        last = last.max(recorder.last);
    }
    if let (Some(first), Some(last)) = (first, last) {
        total.elapsed = last - first;
    }
    total
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn not_a_bench(peer: &Peer, status: Status) -> Status {
    if status.code != Code::NotFound && status.code != Code::Unimplemented {
        return status;
    }
    Status::new(
        status.code,
        format!(
            "{} is no server of a bench; start one there with `grpcxx bench serve --listen {}`",
            peer.address(),
            peer.address()
        ),
    )
}

/// Dials under way at once; a listener queues at least as many.
const DIALS_AT_ONCE: usize = 64;
const CONNECT_TIME: Duration = Duration::from_secs(20);
const QUESTION_TIME: Duration = Duration::from_secs(30);
/// Making 16 GiB of tensors takes a while.
const OPEN_TIME: Duration = Duration::from_secs(120);
/// How often a connection that is to move is looked at.
const MOVE_CHECK: Duration = Duration::from_millis(1);
const WARM_UP_MIN: Duration = Duration::from_millis(50);
const WARM_UP_MAX: Duration = Duration::from_secs(1);
