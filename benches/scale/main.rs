//! One server with very many connections.
//!
//! Questions: does a server accept 10,000 connections from several processes; how much memory does
//! an idle one cost it; how many small calls a second does it serve over all of them, compared with
//! 16 connections from as many processes; and does a connection starve: the 99th percentile of the
//! worst connection beside that of the median one. Units: bytes, calls a second, microseconds.
//! Baselines: 16 connections in the same run, with one call under way on each, and with 32; and
//! bare sockets with as many connections, which say what the system allows. Those with one call
//! take turns in rounds; figures are medians, and ratios are medians of those of the rounds, with
//! the least and the most. Memory, and what single connections saw, are those of the last round.
//!
//! Run with `cargo bench --bench scale`; `-- --quick` takes 400 connections, `-- --write` puts the
//! table into `docs/scaling.md`. Each process raises its limit of open files as far as the system
//! allows.

#![expect(clippy::print_stdout, reason = "the figures are the result")]

mod processes;
mod report;
mod sockets;

use std::net::SocketAddr;
use std::time::Duration;

use grpcxx::EngineOptions;
use grpcxx::memory::ArenaOptions;
use grpcxx::options::PeerShares;
use grpcxx_benches::{BenchClient, BenchServer, Op, RunOptions};
use processes::{Calls, ClientProcess, ServerProcess};
use report::{Crowd, Load, Rates, Round};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["serve"] => serve(),
        ["call", address, connections, depth, milliseconds] => call(
            address,
            connections.parse()?,
            depth.parse()?,
            Duration::from_millis(milliseconds.parse()?),
        ),
        ["serve-sockets"] => sockets::serve(),
        ["call-sockets", address, connections, "1", milliseconds] => sockets::call(
            address,
            connections.parse()?,
            Duration::from_millis(milliseconds.parse()?),
        ),
        [
            process @ ("serve" | "call" | "serve-sockets" | "call-sockets"),
            ..,
        ] => Err(format!("the bench starts its process `{process}` with other arguments").into()),
        _ => compare(
            words.contains(&"--quick") || words.contains(&"--test"),
            words.contains(&"--write"),
        ),
    }
}

/// The server's process: says where it listens and waits for the end of its input.
fn serve() -> Result<(), Failure> {
    grpcxx_benches::raise_open_files();
    let server = BenchServer::start(small_engine().with(|options| {
        options.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        // All of the crowd are one peer, which has files for itself alone here.
        options.shares = Some(PeerShares::of(&options.rendezvous_limits, 2 * CROWD));
    }))?;
    println!("{}", server.address().ok_or("the server does not listen")?);
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line)? > 0 {
        println!("{}", server.accepted());
        line.clear();
    }
    Ok(())
}

/// A client's process: connects, waits for a word, makes calls, and tells rate and percentiles.
fn call(
    address: &str,
    connections: usize,
    depth: usize,
    duration: Duration,
) -> Result<(), Failure> {
    let client = BenchClient::start(small_engine(), vec![address.to_owned()])?;
    let took = client.connect(connections)?;
    println!("{}", took.as_secs_f64());
    std::io::stdin().read_line(&mut String::new())?;
    let options = RunOptions {
        op: Op::Rate,
        connections,
        depth,
        duration,
        by_connection: true,
        ..RunOptions::default()
    };
    let outcome = client.run(&options)?;
    let rate = outcome.measured.report(&options, "tcp", "").req_per_s;
    let p99: Vec<String> = outcome
        .p99_us_by_connection
        .iter()
        .map(|p99| p99.map_or("-".to_owned(), |us| us.to_string()))
        .collect();
    println!("{rate} {}", p99.join(" "));
    Ok(())
}

/// An engine that needs little address space, because there are many.
fn small_engine() -> EngineOptions {
    EngineOptions::default().with(|options| {
        options.arena = Some(ArenaOptions::default().with(|options| {
            options.capacity_bytes = 256 << 20;
            options.huge_pages = false;
        }));
        options.shm = None;
    })
}

fn compare(quick: bool, write: bool) -> Result<(), Failure> {
    let (connections, duration, rounds) = if quick {
        (400, Duration::from_millis(200), 1)
    } else {
        (CROWD, Duration::from_secs(3), ROUNDS)
    };
    let server = ServerProcess::start(Calls::OfEngines)?;
    let deep = load(&server, FEW_CONNECTIONS, FEW_DEPTH, duration)?;
    drop(server);
    let mut rates = Rates {
        connections,
        deep: deep.calls_per_second,
        rounds: Vec::new(),
    };
    let mut last = None;
    for _ in 0..rounds {
        // New ones: a crowd takes memory and ports that are not free again at once.
        let mut server = ServerProcess::start(Calls::OfEngines)?;
        let bare = ServerProcess::start(Calls::OfSockets)?;
        let few = load(&server, FEW_CONNECTIONS, 1, duration)?;
        let few_bare = load(&bare, FEW_CONNECTIONS, 1, duration)?;
        let (crowd, many) = Crowd::gather(&mut server, connections, duration)?;
        let many_bare = load(&bare, connections, 1, duration)?;
        if crowd.accepted != connections as u64 {
            return Err(format!(
                "{} of {connections} connections were accepted",
                crowd.accepted
            )
            .into());
        }
        rates.rounds.push(Round {
            few: [few, few_bare].map(|load| load.calls_per_second),
            many: [&many, &many_bare].map(|load| load.calls_per_second),
        });
        last = Some((crowd, many));
    }
    let (crowd, many) = last.ok_or("there is at least one round")?;
    let text = format!(
        "| | |\n|---|---:|\n{}{}{}",
        crowd.rows(),
        rates.rows(),
        many.rows()
    );
    println!(
        "{CLIENTS} client processes and one server with one shard, {} CPUs; medians of {rounds} rounds in turn\n\n{text}",
        std::thread::available_parallelism()?
    );
    if write {
        processes::write(&text)?;
    }
    Ok(())
}

fn load(
    server: &ServerProcess,
    connections: usize,
    depth: usize,
    duration: Duration,
) -> Result<Load, Failure> {
    let mut clients = start(server, connections, depth, duration)?;
    for client in &mut clients {
        client.line()?;
    }
    Load::collect(clients)
}

pub(crate) fn start(
    server: &ServerProcess,
    connections: usize,
    depth: usize,
    duration: Duration,
) -> Result<Vec<ClientProcess>, Failure> {
    (0..CLIENTS)
        .map(|_| ClientProcess::start(server, connections / CLIENTS, depth, duration))
        .collect()
}

/// Rounds in which 16 and 10,000 connections, of engines and of sockets, take turns: single rates
/// differ by a third.
const ROUNDS: usize = 5;
/// Processes that the connections are spread over.
const CLIENTS: usize = 4;
/// Connections of all clients.
const CROWD: usize = 10_000;
/// The baseline.
pub(crate) const FEW_CONNECTIONS: usize = 16;
pub(crate) const FEW_DEPTH: usize = 32;
