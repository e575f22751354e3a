mod callers;
mod load;

use std::fmt;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use grpcxx_memory::Buffer;
use grpcxx_rpc::{Code, Method, Request, Status};
use grpcxx_runtime::{
    Engine, EngineError, EngineOptions, LinkMedium, Peer, PeerState, StartReport,
};
use quanta::Instant;

use super::floor::{self, Floor};
use super::options::RunOptions;
use super::report::Measured;
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
    /// The 99th percentile of each connection in microseconds, if asked for; connections without a
    /// step have none.
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

    /// What carries the first connection now.
    ///
    /// # Errors
    /// The engine has stopped.
    pub fn medium(&self) -> Result<LinkMedium, Status> {
        let peer = self.engine.client().peer(&self.servers[0])?;
        Ok(self.inspect(&peer)?.medium)
    }

    /// Makes the connections that a run with as many will use, and waits until `medium` carries all
    /// of them.
    ///
    /// # Errors
    /// As of [`BenchClient::connect`]; `UNAVAILABLE` if a connection has not moved in `timeout`,
    /// with what is known of why.
    pub fn connect_over(
        &self,
        connections: usize,
        medium: LinkMedium,
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
    /// `INVALID_ARGUMENT` if the options cannot be run; else the first call that failed, with its
    /// connection.
    pub fn run(&self, options: &RunOptions) -> Result<Outcome, Status> {
        options
            .check()
            .map_err(|text| Status::new(Code::InvalidArgument, text))?;
        self.connect(options.connections)?;
        let peers = self.peers(options.connections)?;
        if options.op.has_api() {
            return self.run_callers(&peers, options);
        }
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

    /// Measures what the machine can do at best for the same options, with the same threads, for
    /// `duration` each.
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

    /// Says a word over each connection, over a bounded number at once, so that no listener's queue
    /// runs over.
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

    /// Prepares the tensors on each server; returns the numbers of the sessions in the order of the
    /// servers.
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
}

impl fmt::Debug for BenchClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BenchClient")
            .field("servers", &self.servers)
            .finish_non_exhaustive()
    }
}

fn not_a_bench(peer: &Peer, status: Status) -> Status {
    if status.code != Code::NotFound && status.code != Code::Unimplemented {
        return status;
    }
    status.with_message(format!(
        "{} is no server of a bench; start one there with `grpcxx bench serve --listen {}`",
        peer.address(),
        peer.address()
    ))
}

/// Dials under way at once; a listener queues at least as many.
const DIALS_AT_ONCE: usize = 64;
const CONNECT_TIME: Duration = Duration::from_secs(20);
const QUESTION_TIME: Duration = Duration::from_secs(30);
/// Making 16 GiB of tensors takes a while.
const OPEN_TIME: Duration = Duration::from_secs(120);
/// How often a connection that is to move is looked at.
const MOVE_CHECK: Duration = Duration::from_millis(1);
