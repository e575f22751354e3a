//! Hosts that refuse something: io_uring, lockable memory, descriptors.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use grpcxx_memory::Buffer;
use grpcxx_tcp::{Driver, DriverRequest, TcpOptions, TcpTransport};
use grpcxx_transport::Transport;
use rustix::process::{Resource, Rlimit, setrlimit};
use seccompiler::{SeccompAction, SeccompFilter, TargetArch};
use support::*;

/// Runs `test` on a thread where `io_uring_setup` fails with `errno`, as container runtimes make
/// it.
fn without_io_uring(errno: i32, test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let rules = [(libc::SYS_io_uring_setup, Vec::new())]
                .into_iter()
                .collect();
            let refuse = SeccompAction::Errno(errno as u32);
            let target = TargetArch::try_from(std::env::consts::ARCH).unwrap();
            let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, target).unwrap();
            let program: seccompiler::BpfProgram = filter.try_into().unwrap();
            // Binds this thread alone, and ends with it.
            seccompiler::apply_filter(&program).unwrap();
            test();
        });
    });
}

fn options(driver: DriverRequest) -> TcpOptions {
    TcpOptions::default().with(|options| options.driver = driver)
}

#[test]
fn where_io_uring_is_blocked_epoll_takes_over_and_says_why() {
    for (errno, advice) in [
        (
            libc::EPERM,
            "blocked by a seccomp profile or kernel.io_uring_disabled",
        ),
        (libc::ENOSYS, "this kernel is built without io_uring"),
        (libc::ENOMEM, "raise RLIMIT_MEMLOCK to 8 MiB"),
        (libc::EINVAL, "older than Linux 5.19"),
    ] {
        without_io_uring(errno, || {
            let (transport, choice) = TcpTransport::open(options(DriverRequest::Auto)).unwrap();
            assert_eq!(choice.driver, Driver::Epoll);
            assert_eq!(transport.name(), "tcp/epoll");
            assert!(choice.why.contains(advice), "{choice}");
            let refused = TcpTransport::open(options(DriverRequest::IoUring)).unwrap_err();
            assert_eq!(refused.errno, errno);
            assert!(refused.message.contains(advice), "{refused}");
            assert!(refused.message.contains("ask for epoll"), "{refused}");
            let (mut a, there, mut b, _) = pair(DriverRequest::Auto);
            assert!(a.send(there, 0, &Buffer::from(pattern(20_000, 0))));
            both(&mut a, &mut b, "it came", |_, b| b.messages.len() == 1);
        });
    }
}

#[test]
fn the_driver_that_is_asked_for_is_the_one_in_use() {
    let (_, choice) = TcpTransport::open(options(DriverRequest::Epoll)).unwrap();
    assert_eq!(choice.to_string(), "tcp/epoll (asked for)");
    if has_io_uring() {
        for request in [DriverRequest::IoUring, DriverRequest::Auto] {
            let (transport, choice) = TcpTransport::open(options(request)).unwrap();
            assert_eq!(
                (transport.name(), choice.driver),
                ("tcp/io_uring", Driver::IoUring)
            );
        }
    }
}

/// A server that echoes messages, in a process of its own with few descriptors.
struct Crowded {
    process: std::process::Child,
    address: String,
}

impl Crowded {
    fn start(driver: DriverRequest) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crowded_server", "--ignored", "--nocapture"])
            .env(DRIVER_VARIABLE, driver.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let address = output
            .lines()
            .find_map(|line| Some(line.unwrap().split_once(MARK)?.1.to_owned()))
            .unwrap();
        Self { process, address }
    }

    fn ask(&self) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(&5u64.to_le_bytes()).unwrap();
        stream.write_all(b"hello").unwrap();
        stream
    }
}

impl Drop for Crowded {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn is_answered(stream: &mut TcpStream, patience: Duration) -> bool {
    stream.set_read_timeout(Some(patience)).unwrap();
    stream.read_exact(&mut [0; 13]).is_ok()
}

/// The other process of `listener_survives_without_descriptors`.
#[test]
#[ignore = "runs in a process of its own"]
#[allow(clippy::print_stdout)]
fn crowded_server() {
    let Ok(driver) = std::env::var(DRIVER_VARIABLE) else {
        return;
    };
    let mut side = Side::new(driver.parse().unwrap());
    let address = side.listen();
    let limit = Rlimit {
        current: Some(DESCRIPTORS),
        maximum: Some(DESCRIPTORS),
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    println!("{MARK}{address}");
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        use grpcxx_transport::Park;
        side.turn();
        while !side.seen.accepted.is_empty() {
            side.adopt();
        }
        while let Some((link, bytes)) = side.seen.messages.pop_front() {
            assert!(side.send(link, 0, &Buffer::from(bytes)));
        }
        side.transport
            .park(Some(Duration::from_millis(100)))
            .unwrap();
    }
}

for_each_driver! {
    fn listener_survives_without_descriptors(driver) {
        let server = Crowded::start(driver);
        let mut streams: Vec<_> = (0..2 * DESCRIPTORS).map(|_| server.ask()).collect();
        let mut answered = 0;
        while is_answered(&mut streams[answered], Duration::from_secs(2)) {
            answered += 1;
        }
        assert!((10..DESCRIPTORS as usize).contains(&answered), "{answered} of {DESCRIPTORS}");
        // As many descriptors are free again as there were links.
        drop(streams.drain(..answered));
        for stream in &mut streams[..answered] {
            assert!(is_answered(stream, PATIENCE));
        }
    }
}

const DRIVER_VARIABLE: &str = "GRPCXX_TEST_CROWDED_DRIVER";
const MARK: &str = "listening on ";
const DESCRIPTORS: u64 = 40;
