//! One server with very many connections.
//!
//! Questions: does a server accept 10,000 connections from several processes; how much memory does an idle one cost
//! it; how many small calls a second does it serve over all of them, compared with 16 connections from as many
//! processes; and does a connection starve: the 99th percentile of the worst connection beside that of the median one.
//! Units: bytes, calls a second, microseconds. Baselines: 16 connections in the same run, with one call under way on
//! each, and with 32.
//!
//! Run with `cargo bench --bench scale`; `-- --quick` takes 400 connections, `-- --write` puts the table into
//! `docs/performance.md`. Each process raises its limit of open files as far as the system allows.

#![expect(clippy::print_stdout, reason = "the figures are the result")]

mod processes;

use std::net::SocketAddr;
use std::time::Duration;

use grpcxx::EngineOptions;
use grpcxx::bench::{BenchClient, BenchServer, Op, RunOptions};
use grpcxx::memory::ArenaOptions;
use processes::{ClientProcess, ServerProcess};

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
        _ => compare(
            words.contains(&"--quick") || words.contains(&"--test"),
            words.contains(&"--write"),
        ),
    }
}

/// The server's process: says where it listens and waits for the end of its input.
fn serve() -> Result<(), Failure> {
    grpcxx::bench::raise_open_files();
    let server = BenchServer::start(EngineOptions {
        listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        ..small_engine()
    })?;
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
    EngineOptions {
        arena: Some(ArenaOptions {
            capacity_bytes: 256 << 20,
            huge_pages: false,
            ..ArenaOptions::default()
        }),
        shm: None,
        ..EngineOptions::default()
    }
}

/// What all clients together saw.
struct Load {
    calls_per_second: f64,
    p99_us: Vec<f64>,
    silent: usize,
}

fn compare(quick: bool, write: bool) -> Result<(), Failure> {
    let (connections, duration) = if quick {
        (400, Duration::from_millis(200))
    } else {
        (10_000, Duration::from_secs(4))
    };
    let mut server = ServerProcess::start()?;
    let few = load(&server, FEW_CONNECTIONS, 1, duration)?;
    let deep = load(&server, FEW_CONNECTIONS, FEW_DEPTH, duration)?;
    let before = server.memory()?;
    let accepted_before = server.accepted()?;
    let mut clients = start(&server, connections, 1, duration)?;
    let mut connecting = 0.0_f64;
    for client in &mut clients {
        connecting = connecting.max(client.line()?.trim().parse()?);
    }
    let accepted = server.accepted()? - accepted_before;
    let idle = server.memory()?;
    let many = collect(clients)?;
    let per_connection = |after: u64, before: u64| after.saturating_sub(before) / accepted.max(1);
    let mut p99 = many.p99_us.clone();
    p99.sort_by(f64::total_cmp);
    let median = p99.get(p99.len() / 2).copied().unwrap_or(f64::NAN);
    let worst = p99.last().copied().unwrap_or(f64::NAN);
    let text = format!(
        "| | |\n|---|---:|\n\
         | connections asked for, accepted | {connections}, {accepted} |\n\
         | from the first to the last | {connecting:.2} s |\n\
         | memory of the process for each idle connection | {} B |\n\
         | memory of the kernel's sockets for each (both ends) | {} B |\n\
         | 64 B calls, {FEW_CONNECTIONS} connections x 1 | {:.0} /s |\n\
         | 64 B calls, {FEW_CONNECTIONS} connections x {FEW_DEPTH}, of which many share a read and a write | {:.0} /s |\n\
         | 64 B calls, {connections} connections x 1 | {:.0} /s |\n\
         | ratio to {FEW_CONNECTIONS} x 1, to {FEW_CONNECTIONS} x {FEW_DEPTH} | {:.2}, {:.2} |\n\
         | p99 of the median connection, of the worst | {median:.0} us, {worst:.0} us |\n\
         | ratio | {:.2} |\n\
         | connections without a call | {} |\n",
        per_connection(idle.process, before.process),
        per_connection(idle.sockets, before.sockets),
        few.calls_per_second,
        deep.calls_per_second,
        many.calls_per_second,
        many.calls_per_second / few.calls_per_second,
        many.calls_per_second / deep.calls_per_second,
        worst / median,
        many.silent,
    );
    println!(
        "{CLIENTS} client processes and one server with one shard, {} CPUs\n\n{text}",
        std::thread::available_parallelism()?
    );
    if write {
        processes::write(&text)?;
    }
    if accepted != connections as u64 {
        return Err(format!("{accepted} of {connections} connections were accepted").into());
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
    collect(clients)
}

fn start(
    server: &ServerProcess,
    connections: usize,
    depth: usize,
    duration: Duration,
) -> Result<Vec<ClientProcess>, Failure> {
    (0..CLIENTS)
        .map(|_| ClientProcess::start(server.address(), connections / CLIENTS, depth, duration))
        .collect()
}

/// Lets all clients begin at once, and adds up what they saw.
fn collect(mut clients: Vec<ClientProcess>) -> Result<Load, Failure> {
    for client in &mut clients {
        client.go()?;
    }
    let mut load = Load {
        calls_per_second: 0.0,
        p99_us: Vec::new(),
        silent: 0,
    };
    for mut client in clients {
        let line = client.line()?;
        let mut words = line.split_whitespace();
        load.calls_per_second += words
            .next()
            .ok_or("a client said nothing")?
            .parse::<f64>()?;
        for word in words {
            match word.parse() {
                Ok(us) => load.p99_us.push(us),
                Err(_) => load.silent += 1,
            }
        }
    }
    Ok(load)
}

/// Processes that the connections are spread over.
const CLIENTS: usize = 4;
/// The baseline.
const FEW_CONNECTIONS: usize = 16;
const FEW_DEPTH: usize = 32;
