//! The load of a run: steps over all connections, as fast as they go or at a rate, and what they
//! came to.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use grpcxx_rpc::{Code, Status};
use grpcxx_runtime::Peer;
use quanta::Instant;

use super::super::floor;
use super::super::lane::{Event, Lane, Load, Recorder};
use super::super::options::RunOptions;
use super::super::report::Measured;
use super::super::steps::StepPlan;
use super::super::usage;
use super::{BenchClient, Outcome};

impl BenchClient {
    pub(super) fn load(
        &self,
        peers: Vec<Peer>,
        sessions: &[i64],
        options: &RunOptions,
    ) -> Result<Outcome, Status> {
        let control = peers[0].clone();
        let plan = StepPlan::new(options)?;
        let (events, heard) = channel();
        let slots = options.connections * options.depth;
        let (from, until) = span_of(options);
        let shards = self.engine.start_report().shards;
        let load = Arc::new(Load {
            plan,
            from,
            until,
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
        let watch = self.watch_cpu(from, until, control);
        let mut stall = Stall::new(options.patience);
        match options.rate {
            None => self.start_all(&lanes, options.depth)?,
            Some(rate) => self.pace(&lanes, options.depth, rate, &load, &heard, &mut stall)?,
        }
        if let Err(status) = await_end(&heard, &load, &lanes, &mut stall) {
            load.fail(status);
        }
        if let Some(status) = lock(&load.failure).take() {
            return Err(status);
        }
        let (cpu_client, cpu_server) = watch.join().unwrap_or_default();
        let mut measured = collect(&load.recorders);
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
        stall: &mut Stall,
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
            if let Err(status) = stall.look(lanes) {
                load.fail(status);
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
        Ok(())
    }

    /// CPU times of client and server while steps are measured.
    pub(super) fn watch_cpu(
        &self,
        from: Instant,
        until: Instant,
        control: Peer,
    ) -> thread::JoinHandle<(Duration, Duration)> {
        let client = self.engine.client();
        thread::spawn(move || {
            let sample = |at: Instant| {
                thread::sleep(at.saturating_duration_since(Instant::now()));
                let server = floor::server_seconds(&client, &control).unwrap_or_default();
                (usage::cpu_time(), server)
            };
            let before = sample(from);
            let after = sample(until);
            let server = Duration::try_from_secs_f64(after.1 - before.1).unwrap_or_default();
            (after.0.saturating_sub(before.0), server)
        })
    }
}

/// Waits until all slots have ended, or calls no longer do.
fn await_end(
    heard: &Receiver<Event>,
    load: &Load,
    lanes: &[Arc<Lane>],
    stall: &mut Stall,
) -> Result<(), Status> {
    // The word that all have ended may have been heard before.
    while load.running.load(Ordering::Acquire) > 0 {
        match heard.recv_timeout(LOOK_INTERVAL) {
            Ok(Event::Free { .. }) => load.end_slot(),
            Ok(Event::Ended) | Err(RecvTimeoutError::Disconnected) => {}
            Err(RecvTimeoutError::Timeout) => stall.look(lanes)?,
        }
    }
    Ok(())
}

/// Finds out that calls no longer end.
struct Stall {
    allowed: Duration,
    next_look: Instant,
    ended_calls: u64,
    /// When this number was new, or nothing was under way.
    since: Instant,
}

impl Stall {
    fn new(allowed: Duration) -> Self {
        let now = Instant::now();
        Self {
            allowed,
            next_look: now,
            ended_calls: 0,
            since: now,
        }
    }

    /// Looks now and then whether calls have ended.
    fn look(&mut self, lanes: &[Arc<Lane>]) -> Result<(), Status> {
        let now = Instant::now();
        if now < self.next_look {
            return Ok(());
        }
        self.next_look = now + LOOK_INTERVAL;
        let counts: Vec<(u64, usize)> = lanes.iter().map(|lane| lane.count_calls()).collect();
        let ended_calls = counts.iter().map(|(ended, _)| ended).sum();
        let waiting = counts.iter().position(|&(_, open)| open > 0);
        match waiting {
            Some(index) if ended_calls == self.ended_calls => {
                if now - self.since < self.allowed {
                    return Ok(());
                }
                let address = lanes[index].peer.address();
                let seconds = self.allowed.as_secs_f64();
                let text = format!(
                    "connection {index} to {address}: no call has ended for {seconds} s; see whether the server still runs"
                );
                Err(Status::new(Code::DeadlineExceeded, text))
            }
            _ => {
                (self.ended_calls, self.since) = (ended_calls, now);
                Ok(())
            }
        }
    }
}

/// When a run measures: from the end of its warm-up on.
pub(super) fn span_of(options: &RunOptions) -> (Instant, Instant) {
    let from = Instant::now() + (options.duration / 8).clamp(WARM_UP_MIN, WARM_UP_MAX);
    (from, from + options.duration)
}

pub(super) fn collect(recorders: &[Mutex<Recorder>]) -> Measured {
    let mut total = Measured::default();
    let (mut first, mut last): (Option<Instant>, Option<Instant>) = (None, None);
    for recorder in recorders {
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

const WARM_UP_MIN: Duration = Duration::from_millis(50);
const WARM_UP_MAX: Duration = Duration::from_secs(1);
/// How often it is looked whether calls still end, for a look disturbs what is measured.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
