//! What it brings that tensors share frames.
//!
//! Question: how long does a step that pulls COUNT tensors of SIZE bytes take, when the planner
//! lets them share frames and when each has a call of its own? Both in alternating windows of the
//! same run; the median of a window counts, and of several windows the best, because what else the
//! machine does only adds. Unit: microseconds. Baseline: without fusion; for 1,000 x 1 KiB also a
//! memcpy of the same bytes and one round trip.
//!
//! Run with `cargo bench --bench fusion`; `-- --quick` only shows that it runs, `-- --write` puts
//! table and plot into `docs/`, `-- --goal` measures 1,000 x 1 KiB alone, over TCP and over shared
//! memory, and with `--write` puts only that there. `-- --tensors N`, `-- --frames N` and
//! `-- --shared BYTES` try other limits of the planner.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the figures are the result, and progress is shown beside them"
)]

mod plot;

use std::net::SocketAddr;
use std::time::Duration;

use grpcxx::EngineOptions;
use grpcxx_benches::{BenchClient, BenchServer, Op, PayloadSpec, RunOptions};
use grpcxx_fusion::PlanLimits;
use grpcxx_runtime::LinkMedium;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let plan = Sweep::from_arguments()?;
    if plan.only_goal {
        let goal = goals(&plan)?;
        println!("{goal}");
        if plan.write {
            write(&goal, GOAL)?;
        }
        return Ok(());
    }
    let (_server, client) = pair(Medium::Tcp)?;
    let mut cells = Vec::new();
    for &size in &plan.sizes {
        for &count in &plan.counts {
            if size * count as u64 <= plan.total_bytes_max {
                let cell = measure(&client, &plan, size, count)?;
                eprintln!("{size:>9} B x {count:>5}: {cell:?}");
                cells.push(cell);
            }
        }
    }
    drop((_server, client));
    let goal = goals(&plan)?;
    let text = table(&plan, &cells);
    println!("{text}\n{goal}");
    if plan.write {
        write(&text, SWEEP)?;
        write(&goal, GOAL)?;
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/fusion-sweep.svg");
        std::fs::write(path, plot::draw(&plan, &cells)?)?;
    }
    Ok(())
}

/// What to measure.
struct Sweep {
    sizes: Vec<u64>,
    counts: Vec<usize>,
    total_bytes_max: u64,
    rounds: usize,
    window: Duration,
    limits: PlanLimits,
    write: bool,
    only_goal: bool,
}

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Medium {
    Tcp,
    SharedMemory,
}

/// One step, both ways.
#[derive(Clone, Copy, Debug)]
struct Cell {
    size: u64,
    count: usize,
    fused_us: f64,
    alone_us: f64,
}

impl Sweep {
    fn from_arguments() -> Result<Self, Failure> {
        let mut sweep = Self {
            sizes: (0..10).map(|power| 64 << (2 * power)).collect(),
            counts: vec![1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000],
            total_bytes_max: 256 << 20,
            rounds: 5,
            window: Duration::from_millis(60),
            limits: PlanLimits::between_grpcxx(),
            write: false,
            only_goal: false,
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut number = || -> Result<u64, Failure> {
                Ok(arguments.next().ok_or("a number is missing")?.parse()?)
            };
            match argument.as_str() {
                "--quick" | "--test" => {
                    sweep.sizes = vec![64, 16 << 10, 1 << 20];
                    sweep.counts = vec![1, 30, 300];
                    sweep.total_bytes_max = 32 << 20;
                    sweep.rounds = 1;
                    sweep.window = Duration::from_millis(20);
                }
                "--goal" => sweep.only_goal = true,
                "--write" => sweep.write = true,
                "--rounds" => sweep.rounds = number()?.max(1) as usize,
                "--window-ms" => sweep.window = Duration::from_millis(number()?.max(1)),
                "--tensors" => sweep.limits.tensors_per_frame = number()? as usize,
                "--frames" => sweep.limits.frames_wanted = number()? as usize,
                "--shared" => sweep.limits.shared_tensor_bytes = number()?,
                "--size" => sweep.sizes = vec![number()?],
                "--count" => sweep.counts = vec![number()? as usize],
                // Cargo passes this one on.
                "--bench" => {}
                _ => return Err(format!("{argument} is no argument of this bench").into()),
            }
        }
        Ok(sweep)
    }
}

/// Two engines that spin, one shard each, on CPUs of their own.
fn pair(medium: Medium) -> Result<(BenchServer, BenchClient), Failure> {
    let options = |first_cpu| {
        EngineOptions::default().with(|options| {
            options.pin = true;
            options.first_cpu = first_cpu;
            options.polling = true;
            options.shm.take_if(|_| medium != Medium::SharedMemory);
        })
    };
    let server = BenchServer::start(
        options(1).with(|options| options.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)))),
    )?;
    let address = server.address().ok_or("the server does not listen")?;
    let client = BenchClient::start(options(0), vec![address.to_string()])?;
    if medium == Medium::SharedMemory {
        client.connect_over(1, LinkMedium::SharedMemory, Duration::from_secs(10))?;
    }
    Ok((server, client))
}

fn run(
    client: &BenchClient,
    sweep: &Sweep,
    size: u64,
    count: usize,
    fusion: Option<PlanLimits>,
) -> Result<f64, Failure> {
    let options = RunOptions {
        op: Op::Pull,
        payload: PayloadSpec {
            size_bytes: size,
            count,
            ..PayloadSpec::default()
        },
        duration: sweep.window,
        fusion,
        ..RunOptions::default()
    };
    Ok(client.run(&options)?.measured.quantile_us(0.5))
}

fn measure(client: &BenchClient, sweep: &Sweep, size: u64, count: usize) -> Result<Cell, Failure> {
    let mut cell = Cell {
        size,
        count,
        fused_us: f64::INFINITY,
        alone_us: f64::INFINITY,
    };
    for round in 0..sweep.rounds * ROUNDS_AGAIN {
        if round >= sweep.rounds && cell.ratio() <= RATIO_WANTED {
            break;
        }
        let fused = run(client, sweep, size, count, Some(sweep.limits))?;
        let alone = run(client, sweep, size, count, None)?;
        cell.fused_us = cell.fused_us.min(fused);
        cell.alone_us = cell.alone_us.min(alone);
    }
    Ok(cell)
}

impl Cell {
    /// Below 1 where fusion pays.
    fn ratio(&self) -> f64 {
        self.fused_us / self.alone_us
    }
}

/// 1,000 tensors in one step against twice a memcpy of the same bytes and one round trip, over each
/// medium.
fn goals(sweep: &Sweep) -> Result<String, Failure> {
    let mut rows = String::from(
        "| 1,000 tensors in one step | pull | spinning sockets | memcpy | one round trip of ours | pull to twice the memcpy and one round trip |\n|---|---:|---:|---:|---:|---:|\n",
    );
    for (medium, name) in [
        (Medium::Tcp, "TCP"),
        (Medium::SharedMemory, "shared memory"),
    ] {
        let (server, client) = pair(medium)?;
        for size in [64, 1024] {
            let [fused, round_trip, sockets, copy] = goal(&client, sweep, size)?;
            let ratio = fused / (2.0 * copy + round_trip);
            rows.push_str(&format!(
                "| {} over {name} | {fused:.0} us | {sockets:.0} us | {copy:.1} us | {round_trip:.1} us | {ratio:.2} |\n",
                bytes(size)
            ));
        }
        drop(client);
        drop(server);
    }
    Ok(rows)
}

/// Microseconds of a fused step, of one round trip, of the same bytes over sockets, and of a copy
/// tensor by tensor.
fn goal(client: &BenchClient, sweep: &Sweep, size: u64) -> Result<[f64; 4], Failure> {
    let mut best = [f64::INFINITY; 4];
    for _ in 0..sweep.rounds {
        let fused = run(client, sweep, size, 1000, Some(sweep.limits))?;
        let round_trip = run(client, sweep, 1, 1, None)?;
        let mut options = RunOptions {
            op: Op::Pull,
            ..RunOptions::default()
        };
        options.payload.size_bytes = size;
        options.payload.count = 1000;
        let floors = client.floors(&options, sweep.window)?;
        let values = [
            fused,
            round_trip,
            floors[0].measured.quantile_us(0.5),
            floors[1].measured.quantile_us(0.5),
        ];
        for (best, value) in best.iter_mut().zip(values) {
            *best = best.min(value);
        }
    }
    Ok(best)
}

fn table(sweep: &Sweep, cells: &[Cell]) -> String {
    let mut text = String::from("| size \\ count |");
    for count in &sweep.counts {
        text.push_str(&format!(" {count} |"));
    }
    text.push_str(&format!("\n|---|{}\n", "---:|".repeat(sweep.counts.len())));
    for &size in &sweep.sizes {
        text.push_str(&format!("| {} |", bytes(size)));
        for &count in &sweep.counts {
            let cell = cells
                .iter()
                .find(|cell| cell.size == size && cell.count == count);
            text.push_str(&cell.map_or(" |".to_owned(), |cell| format!(" {:.2} |", cell.ratio())));
        }
        text.push('\n');
    }
    let worst = cells.iter().map(Cell::ratio).fold(0.0, f64::max);
    let best = cells.iter().map(Cell::ratio).fold(f64::INFINITY, f64::min);
    text.push_str(&format!(
        "\nTime of a fused step to that of one without: {best:.2} at best, {worst:.2} at worst; {} windows of {} ms for each figure, \
         up to {} where fusion was slower by more than {:.0} %.\n",
        sweep.rounds,
        sweep.window.as_millis(),
        sweep.rounds * ROUNDS_AGAIN,
        (RATIO_WANTED - 1.0) * 100.0
    ));
    text
}

/// A size as people write it.
fn bytes(size: u64) -> String {
    match size {
        0..1024 => format!("{size} B"),
        1024..1_048_576 => format!("{} KiB", size >> 10),
        _ => format!("{} MiB", size >> 20),
    }
}

/// Puts a table between its marks.
fn write(text: &str, name: &str) -> Result<(), Failure> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/fusion.md");
    let (begin, end) = (
        format!("<!-- {name}:begin -->"),
        format!("<!-- {name}:end -->"),
    );
    let document = std::fs::read_to_string(path)?;
    let (before, rest) = document.split_once(&begin).ok_or("no begin mark")?;
    let (_, after) = rest.split_once(&end).ok_or("no end mark")?;
    std::fs::write(path, format!("{before}{begin}\n{text}{end}{after}"))?;
    Ok(())
}

/// What fusion may cost at most, anywhere.
const RATIO_WANTED: f64 = 1.03;
/// How many times the rounds there are where a figure is above that: scatter goes away, what fusion
/// costs stays.
const ROUNDS_AGAIN: usize = 6;

const SWEEP: &str = "sweep";
const GOAL: &str = "goal";
