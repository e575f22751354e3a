//! The load of a run: steps over all connections, as fast as they go or at a rate, and what they came to.

use std::sync::atomic::{AtomicBool, AtomicUsize};
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
use super::{BenchClient, Outcome, QUESTION_TIME};

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
        await_end(&heard, &lanes, STALL_TIME)?;
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

/// Waits until all slots have ended. Calls have no deadlines, which would be part of what is measured, so this gives up
/// when none has ended for `stall_time`.
fn await_end(
    heard: &Receiver<Event>,
    lanes: &[Arc<Lane>],
    stall_time: Duration,
) -> Result<(), Status> {
    let ended_calls = || lanes.iter().map(|lane| lane.ended_calls()).sum::<u64>();
    let mut before = ended_calls();
    loop {
        match heard.recv_timeout(stall_time) {
            Ok(Event::Free { .. }) => {}
            Ok(Event::Ended) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                let after = ended_calls();
                if after == before {
                    let text = format!(
                        "no call has ended for {} s; see whether the server still runs",
                        stall_time.as_secs_f64()
                    );
                    return Err(Status::new(Code::DeadlineExceeded, text));
                }
                before = after;
            }
        }
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

const WARM_UP_MIN: Duration = Duration::from_millis(50);
const WARM_UP_MAX: Duration = Duration::from_secs(1);
/// How long the server may be silent before the run is given up.
const STALL_TIME: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_server_ends_the_wait() {
        let (events, heard) = channel();
        let stall_time = Duration::from_millis(1);
        let status = await_end(&heard, &[], stall_time).unwrap_err();
        assert_eq!(status.code, Code::DeadlineExceeded);
        events.send(Event::Free { lane: 0, slot: 0 }).unwrap();
        events.send(Event::Ended).unwrap();
        assert_eq!(await_end(&heard, &[], stall_time), Ok(()));
    }
}
