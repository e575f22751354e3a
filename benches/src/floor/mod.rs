//! What the machine can do at best, measured with the threads that also make and serve the calls.

mod memory;
mod sockets;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::mpsc::channel;
use std::time::Duration;

use grpcxx_rpc::{Code, Status};
use grpcxx_runtime::{Client, Engine, Peer};

use self::sockets::Exchange;
use super::options::{Op, RunOptions};
use super::report::Measured;
use super::{usage, wire};

/// A medium at its limit.
#[derive(Debug)]
pub struct Floor {
    /// `spinning sockets`, `memcpy` or `shared-memory ring`.
    pub medium: &'static str,
    /// What it did.
    pub measured: Measured,
}

/// Serves plain sockets on the calling thread; see [`measure`].
pub(super) fn serve(listener: Option<TcpListener>) -> Result<(), Status> {
    let listener = listener.ok_or_else(|| {
        Status::new(
            Code::FailedPrecondition,
            "ask for a port for plain sockets first",
        )
    })?;
    sockets::serve(&listener).map_err(failed)
}

/// Measures each medium for `duration`, on the first shards of both sides, which do nothing else
/// meanwhile.
pub(super) fn measure(
    engine: &Engine,
    peer: &Peer,
    options: &RunOptions,
    duration: Duration,
) -> Result<Vec<Floor>, Status> {
    let sizes = options.payload.sizes();
    let exchange = exchange(options);
    // Who streams asks for nothing, so nobody may wait for an answer.
    let depth = match options.op {
        Op::Stream => options.depth.max(STREAM_DEPTH),
        _ => options.depth,
    };
    let mut floors = Vec::new();
    let (quiet, address) = hold(&engine.client(), peer)?;
    let measured = quiet.on_shard(engine, move |control| {
        sockets::measure(control, address, exchange, depth, duration)
    })?;
    floors.push(Floor {
        medium: "spinning sockets",
        measured,
    });
    let is_small = matches!(options.op, Op::Latency | Op::Rate | Op::Call | Op::Unary);
    let in_flight = (options.connections * options.depth).min(RING_MESSAGES_MAX);
    let crossings = options.op.crossings();
    let (quiet, _) = hold(&engine.client(), peer)?;
    // Not on the shard, whose CPU the far thread would inherit.
    let echo = is_small.then(|| memory::Echo::start(in_flight));
    let measured = quiet.on_shard(engine, move |control| {
        let measured = match echo {
            Some(echo) => echo.measure(in_flight, duration),
            None => memory::copies(&sizes, crossings, duration),
        };
        drop(control);
        Ok(measured)
    })?;
    floors.push(Floor {
        medium: if is_small {
            "shared-memory ring"
        } else {
            "memcpy"
        },
        measured,
    });
    Ok(floors)
}

/// What plain sockets have to carry to do the same as a step.
fn exchange(options: &RunOptions) -> Exchange {
    let payload = options.payload.total_bytes().max(1);
    Exchange {
        request_bytes: if options.op.pushes() {
            payload
        } else {
            REQUEST_BYTES
        },
        answer_bytes: if options.op.pulls() {
            payload
        } else {
            REQUEST_BYTES
        },
        connections: (options.connections as u64).min(sockets::CONNECTIONS_MAX),
    }
}

/// A server whose shard serves plain sockets, and nothing else, until the control connection
/// closes.
struct Quiet {
    control: std::net::TcpStream,
    serving: grpcxx_runtime::Call,
    client: Client,
    peer: Peer,
    server_seconds: f64,
}

fn hold(client: &Client, peer: &Peer) -> Result<(Quiet, SocketAddr), Status> {
    let timeout = Some(ANSWER_TIME);
    let server_seconds = server_seconds(client, peer)?;
    let response = client
        .call(peer, wire::ask(wire::FLOOR_PORT, None), timeout)
        .wait()?;
    let port: i64 = wire::answer(&response)?;
    let address = SocketAddr::new(host_of(peer)?, port as u16);
    let serving = client.call(peer, wire::ask(wire::FLOOR_SERVE, None), None);
    let control = sockets::connect(address).map_err(failed)?;
    let quiet = Quiet {
        control,
        serving,
        client: client.clone(),
        peer: peer.clone(),
        server_seconds,
    };
    Ok((quiet, address))
}

/// Where the host of a peer is now.
fn host_of(peer: &Peer) -> Result<IpAddr, Status> {
    if let Some(address) = peer.socket_address() {
        return Ok(address.ip());
    }
    let mut addresses = peer.address().to_socket_addrs().map_err(failed)?;
    let first = addresses
        .next()
        .ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    Ok(first.ip())
}

impl Quiet {
    /// Runs `measure` on the first shard of this side.
    fn on_shard(
        self,
        engine: &Engine,
        measure: impl FnOnce(std::net::TcpStream) -> io::Result<Measured> + Send + 'static,
    ) -> Result<Measured, Status> {
        let (done, ended) = channel();
        let control = self.control;
        let before = usage::cpu_time();
        engine.run_on(0, move |_| {
            // Whoever waits for it is still there.
            let _ = done.send(measure(control));
        })?;
        let mut measured = ended
            .recv()
            .map_err(|_| Status::new(Code::Internal, "the measuring shard ended"))?
            .map_err(failed)?;
        measured.cpu_client = usage::cpu_time() - before;
        self.serving.wait()?;
        let seconds = server_seconds(&self.client, &self.peer)? - self.server_seconds;
        measured.cpu_server = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        Ok(measured)
    }
}

/// CPU time of the server so far, in seconds.
pub(super) fn server_seconds(client: &Client, peer: &Peer) -> Result<f64, Status> {
    let response = client
        .call(peer, wire::ask(wire::USAGE, None), Some(ANSWER_TIME))
        .wait()?;
    wire::answer(&response)
}

fn failed(error: io::Error) -> Status {
    Status::new(
        Code::Unavailable,
        format!(
            "plain sockets beside the star port: {error}; --limit needs any port of the server's host"
        ),
    )
}

/// Length of the small part of an exchange.
const REQUEST_BYTES: u64 = 64;
/// Answers under way on each connection where a stream is measured.
const STREAM_DEPTH: usize = 64;
/// Most messages under way in the ring between two threads.
const RING_MESSAGES_MAX: usize = 1 << 16;
/// How long the server may take to answer a question beside the run.
const ANSWER_TIME: Duration = Duration::from_secs(30);
