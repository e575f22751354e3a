//! Calls of functions and of methods, and streams, from a shard, from ordinary threads or in tokio.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, TryStreamExt};
use grpcxx_rpc::{Code, DType, GraphCall, Shape, Status, Tensor};
use grpcxx_runtime::{Peer, Remote};
use quanta::Instant;

use super::super::lane::Recorder;
use super::super::options::{Api, Op, RunOptions};
use super::super::typed::contents;
use super::super::typed::proto::{Load, Order, TypedClient};
use super::super::wire;
use super::load::{collect, span_of};
use super::{BenchClient, Outcome, not_a_bench};

/// What all callers of a run share.
struct Course {
    op: Op,
    bytes: u64,
    depth: usize,
    verify: bool,
    /// Steps that begin from here on are measured.
    from: Instant,
    /// No step begins from here on, once one was measured.
    until: Instant,
    /// Set by the first error.
    is_failed: AtomicBool,
}

impl BenchClient {
    pub(super) fn run_callers(
        &self,
        peers: &[Peer],
        options: &RunOptions,
    ) -> Result<Outcome, Status> {
        let (from, until) = span_of(options);
        let course = Arc::new(Course {
            op: options.op,
            bytes: options.payload.size_bytes,
            depth: options.depth,
            verify: options.verify,
            from,
            until,
            is_failed: AtomicBool::new(false),
        });
        let watch = self.watch_cpu(from, until, peers[0].clone());
        let (ended, ends) = channel();
        let mut threads = Vec::new();
        let mut aborts = Vec::new();
        for connections in self.connections_by_caller(peers, options.api) {
            let (abort, registration) = AbortHandle::new_pair();
            aborts.push(abort);
            let (course, ended) = (Arc::clone(&course), ended.clone());
            let first = connections[0].peer().clone();
            let shard = first.shard();
            let work = async move {
                let recorder = Mutex::default();
                let calls = Abortable::new(course.call_all(&connections, &recorder), registration);
                let result = calls.await.unwrap_or_else(|_| Err(silent(&first)));
                if result.is_err() {
                    course.is_failed.store(true, Ordering::Relaxed);
                }
                // The thread that runs the bench waits for it.
                let _ = ended.send(result.map(|()| recorder));
            };
            match options.api {
                Api::Shard => drop(self.engine.shards().submit_to(shard, move || work)),
                Api::Thread => {
                    let client = self.engine.client();
                    threads.push(thread::spawn(move || {
                        client.wait(shard, work, None).unwrap_or_default();
                    }));
                }
                Api::Tokio => threads.push(in_tokio(work)?),
            }
        }
        drop(ended);
        let mut recorders = Vec::new();
        let mut failure = None;
        let given_up = until + options.patience;
        loop {
            let wait = given_up.saturating_duration_since(Instant::now());
            match ends.recv_timeout(wait) {
                Ok(Ok(recorder)) => recorders.push(recorder),
                Ok(Err(status)) => failure = failure.or(Some(status)),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => aborts.iter().for_each(AbortHandle::abort),
            }
        }
        let joined = threads.into_iter().try_for_each(JoinHandle::join);
        joined.map_err(|_| Status::new(Code::Internal, "a thread that calls panicked"))?;
        if let Some(status) = failure {
            return Err(status);
        }
        let (cpu_client, cpu_server) = watch.join().unwrap_or_default();
        let mut measured = collect(&recorders);
        measured.cpu_client = cpu_client;
        measured.cpu_server = cpu_server;
        Ok(Outcome {
            measured,
            p99_us_by_connection: Vec::new(),
        })
    }

    /// The connections of each caller: those of a shard, or one of each thread.
    fn connections_by_caller(&self, peers: &[Peer], api: Api) -> Vec<Vec<Remote>> {
        let connection = |peer: &Peer| Remote::new(self.engine.client(), peer.clone());
        if api != Api::Shard {
            return peers.iter().map(|peer| vec![connection(peer)]).collect();
        }
        let of_shard = |shard| {
            let peers = peers.iter().filter(move |peer| peer.shard() == shard);
            peers.map(connection).collect::<Vec<_>>()
        };
        let shards = (0..self.engine.start_report().shards).map(of_shard);
        shards
            .filter(|connections| !connections.is_empty())
            .collect()
    }
}

impl Course {
    async fn call_all(
        &self,
        connections: &[Remote],
        recorder: &Mutex<Recorder>,
    ) -> Result<(), Status> {
        let slots = FuturesUnordered::new();
        for connection in connections {
            for _ in 0..self.depth {
                let slot = match self.op {
                    Op::Call => self.call_function(connection, recorder).boxed(),
                    Op::Stream => self.stream(connection, recorder).boxed(),
                    _ => self.call_method(connection, recorder).boxed(),
                };
                slots.push(
                    slot.map(|ended| {
                        ended.map_err(|status| not_a_bench(connection.peer(), status))
                    }),
                );
            }
        }
        slots.try_collect().await
    }

    /// One call of a function behind the other.
    async fn call_function(
        &self,
        connection: &Remote,
        recorder: &Mutex<Recorder>,
    ) -> Result<(), Status> {
        let data = contents(self.bytes);
        let shape = Shape::new(&[self.bytes])?;
        let argument = Tensor::new(DType::UInt8, shape, data.to_vec())?;
        let call = GraphCall::new(wire::ECHO)
            .with_feed(wire::VALUE, argument)
            .with_fetch(wire::VALUE);
        loop {
            let begin = Instant::now();
            if self.is_over(begin, recorder) {
                return Ok(());
            }
            let fetched = connection.run(call.clone()).await?;
            self.accept(&data, &fetched.get(wire::VALUE)?.data)?;
            self.note(begin, Instant::now(), recorder);
        }
    }

    /// One call of a method behind the other.
    async fn call_method(
        &self,
        connection: &Remote,
        recorder: &Mutex<Recorder>,
    ) -> Result<(), Status> {
        let client = TypedClient::new(connection.clone());
        let data = contents(self.bytes);
        loop {
            let begin = Instant::now();
            if self.is_over(begin, recorder) {
                return Ok(());
            }
            let data_sent = data.clone();
            let answer = client.echo(Load { data: data_sent }).await?;
            self.accept(&data, &answer.get_ref().data)?;
            self.note(begin, Instant::now(), recorder);
        }
    }

    /// One message behind the other.
    async fn stream(&self, connection: &Remote, recorder: &Mutex<Recorder>) -> Result<(), Status> {
        let client = TypedClient::new(connection.clone());
        let data = contents(self.bytes);
        let order = Order { bytes: self.bytes };
        let mut loads = client.flood(order).await?.into_inner();
        let mut begin = Instant::now();
        while !self.is_over(begin, recorder) {
            let Some(load) = loads.message().await? else {
                return Err(Status::new(Code::DataLoss, "a stream ended by itself"));
            };
            self.accept(&data, &load.data)?;
            let end = Instant::now();
            self.note(begin, end, recorder);
            begin = end;
        }
        Ok(())
    }

    fn accept(&self, expected: &[u8], arrived: &[u8]) -> Result<(), Status> {
        let is_same = match self.verify {
            true => arrived == expected,
            false => arrived.len() == expected.len(),
        };
        if is_same {
            return Ok(());
        }
        let text = "what came back is not what was sent; see --verify";
        Err(Status::new(Code::DataLoss, text))
    }

    fn is_over(&self, now: Instant, recorder: &Mutex<Recorder>) -> bool {
        self.is_failed.load(Ordering::Relaxed)
            || (now >= self.until && lock(recorder).measured.steps > 0)
    }

    fn note(&self, begin: Instant, end: Instant, recorder: &Mutex<Recorder>) {
        if begin < self.from {
            return;
        }
        let mut recorder = lock(recorder);
        recorder.measured.record(end - begin);
        recorder.measured.calls += 1;
        recorder.first.get_or_insert(begin);
        recorder.last = Some(end);
    }
}

/// Runs a future in a tokio of its own.
fn in_tokio(work: impl Future<Output = ()> + Send + 'static) -> Result<JoinHandle<()>, Status> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime
        .map_err(|error| Status::new(Code::Internal, format!("tokio cannot start: {error}")))?;
    Ok(thread::spawn(move || runtime.block_on(work)))
}

fn silent(peer: &Peer) -> Status {
    let address = peer.address();
    let text = format!("{address} did not answer; see whether the server still runs");
    Status::new(Code::DeadlineExceeded, text)
}

fn lock(recorder: &Mutex<Recorder>) -> std::sync::MutexGuard<'_, Recorder> {
    recorder.lock().unwrap_or_else(PoisonError::into_inner)
}
