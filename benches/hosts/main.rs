//! Question: what does a host cost? First, 64 bytes over TCP and back between two shards, in
//! microseconds, for each placement, driver, host and way to idle. Baseline of the same run:
//! blocking sockets of std between two threads. Second, what a shard without work takes of a CPU,
//! in percent. Baseline: a thread that spins.
#![expect(clippy::print_stdout, reason = "the figures are the result")]

#[path = "../../runtime/tests/echo/mod.rs"]
mod echo;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use echo::{Setup, run};
use grpcxx_runtime::host::HostKind;
use grpcxx_runtime::idle::IdlePolicy;
use grpcxx_runtime::placement::{allowed_cpus, pin_current_thread};
use grpcxx_tcp::DriverRequest;

fn main() {
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let allowed = allowed_cpus();
    let cpus = match allowed.as_slice() {
        [first, second, ..] => [Some(*first), Some(*second)],
        _ => [None, None],
    };
    println!("{:<64} {:>8} {:>8}", "64 B round trip, us", "p50", "p99");
    for (placed, cpus) in [("pinned", cpus), ("not pinned", [None, None])] {
        print(&format!("{placed}, blocking std sockets"), &baseline(cpus));
        print_hosts(placed, cpus);
    }
    println!("{:<64} {:>8}", "a shard without work, % of a CPU", "mean");
    print_idle();
}

fn print_idle() {
    println!(
        "{:<64} {:>8.2}",
        "a thread that spins",
        cpu_percent(Instant::now())
    );
    for driver in [DriverRequest::IoUring, DriverRequest::Epoll] {
        for (kind, has_futures) in HOSTS {
            let setup = Setup {
                driver,
                kind,
                idle: IdlePolicy::SpinThenPark(Duration::from_micros(30)),
                has_futures,
                cpus: [None, None],
                round_trips: 1,
            };
            let (server, address) = echo::serve(&setup);
            let client = TcpStream::connect(address).expect("the server listens");
            std::thread::sleep(Duration::from_millis(50));
            let before_ns = cpu_time_ns();
            std::thread::sleep(IDLE_TIME);
            let percent = (cpu_time_ns() - before_ns) as f64 * 100.0 / IDLE_TIME.as_nanos() as f64;
            let futures = if has_futures { " with futures" } else { "" };
            let name = format!("{driver}, {}{futures}", kind.name());
            println!("{name:<64} {percent:>8.2}");
            drop(client);
            server.join().expect("the server ends with its client");
        }
    }
}

fn cpu_percent(begin: Instant) -> f64 {
    let before_ns = cpu_time_ns();
    while begin.elapsed() < IDLE_TIME {
        std::hint::spin_loop();
    }
    (cpu_time_ns() - before_ns) as f64 * 100.0 / IDLE_TIME.as_nanos() as f64
}

/// Time that the threads of this process have run, as the scheduler counts it.
fn cpu_time_ns() -> u64 {
    let threads = std::fs::read_dir("/proc/self/task").expect("proc is mounted");
    threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("schedstat")).ok())
        .filter_map(|text| text.split(' ').next()?.parse::<u64>().ok())
        .sum()
}

fn print_hosts(placed: &str, cpus: [Option<usize>; 2]) {
    for driver in [DriverRequest::IoUring, DriverRequest::Epoll] {
        for idle in [
            IdlePolicy::Spin,
            IdlePolicy::SpinThenPark(Duration::from_micros(30)),
            IdlePolicy::Park,
        ] {
            for (kind, has_futures) in HOSTS {
                let setup = Setup {
                    driver,
                    kind,
                    idle,
                    has_futures,
                    cpus,
                    round_trips: ROUND_TRIPS,
                };
                let futures = if has_futures { " with futures" } else { "" };
                let name = format!("{placed}, {driver}, {}{futures}, {idle}", kind.name());
                print(&name, &run(setup));
            }
        }
    }
}

fn baseline(cpus: [Option<usize>; 2]) -> Vec<u64> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("a listener has an address");
    let server = std::thread::spawn(move || {
        cpus[0].map(pin_current_thread);
        let (mut stream, _) = listener.accept().expect("the client dials");
        stream.set_nodelay(true).expect("TCP knows it");
        let mut message = [0; 64];
        while stream.read_exact(&mut message).is_ok() {
            stream.write_all(&message).expect("the client reads");
        }
    });
    let client = std::thread::spawn(move || {
        cpus[1].map(pin_current_thread);
        let mut stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("TCP knows it");
        let mut message = [7; 64];
        let mut times: Vec<u64> = (0..ROUND_TRIPS)
            .map(|_| {
                let begin = Instant::now();
                stream.write_all(&message).expect("the server reads");
                stream.read_exact(&mut message).expect("the server answers");
                begin.elapsed().as_nanos() as u64
            })
            .collect();
        times.sort_unstable();
        times
    });
    let times = client.join().expect("the client ends");
    server.join().expect("the server ends");
    times
}

fn print(name: &str, times_ns: &[u64]) {
    let at = |part: usize| times_ns[times_ns.len() * part / 100] as f64 / 1e3;
    println!("{name:<64} {:>8.1} {:>8.1}", at(50), at(99));
}

const ROUND_TRIPS: usize = 10_000;
const IDLE_TIME: Duration = Duration::from_secs(2);
const HOSTS: [(HostKind, bool); 3] = [
    (HostKind::Native, false),
    (HostKind::Glommio, false),
    (HostKind::Glommio, true),
];
