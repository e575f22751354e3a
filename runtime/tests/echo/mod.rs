//! Two shards that echo 64 bytes over TCP, each on a host of its own: the smallest engine there can
//! be.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{Sender, channel};
use std::task::Waker;
use std::time::{Duration, Instant};

use grpcxx_runtime::host::{Clock, HostError, HostHandle, HostKind, HostOptions, ShardLoop, spawn};
use grpcxx_runtime::idle::IdlePolicy;
use grpcxx_tcp::{Accepted, DriverRequest, TcpOptions, TcpTransport};
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Migration, Next, Outcome, Park,
    Progress, Time, Transport,
};

/// One way to run the pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) driver: DriverRequest,
    pub(crate) kind: HostKind,
    pub(crate) idle: IdlePolicy,
    /// Give each host a future that never ends, as a user might.
    pub(crate) has_futures: bool,
    pub(crate) cpus: [Option<usize>; 2],
    pub(crate) round_trips: usize,
}

/// Starts a server that waits for a client; it ends when its client goes.
pub(crate) fn serve(setup: &Setup) -> (HostHandle, SocketAddr) {
    let (address, addressed) = channel();
    let driver = setup.driver;
    let server = move || {
        let (mut transport, _) = open(driver)?;
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let (_, bound) = transport
            .listen(any_port)
            .map_err(|error| error.to_string())?;
        address.send(bound).map_err(|error| error.to_string())?;
        Ok(EchoShard::new(transport, Side::Server))
    };
    let (server, tasks) = spawn(options("echo-server", setup, 0), server).unwrap();
    server.wait_started().unwrap();
    if setup.has_futures {
        tasks.spawn_local(std::future::pending).unwrap();
    }
    (server, addressed.recv().unwrap())
}

/// Runs the pair and returns the round trip times in nanoseconds, sorted.
pub(crate) fn run(setup: Setup) -> Vec<u64> {
    let (server, peer) = serve(&setup);
    let (times, timed) = channel();
    let client = move || {
        let (mut transport, _) = open(setup.driver)?;
        transport.connect(peer).map_err(|error| error.to_string())?;
        let side = Side::Client {
            begin: Instant::now(),
            times_ns: Vec::with_capacity(setup.round_trips),
            report: times,
        };
        Ok(EchoShard::new(transport, side))
    };
    let (client, client_tasks) = spawn(options("echo-client", &setup, 1), client).unwrap();
    if setup.has_futures {
        client_tasks.spawn_local(std::future::pending).unwrap();
    }
    let mut times = timed.recv_timeout(PATIENCE).expect("the pair is stuck");
    client.join().unwrap();
    server.join().unwrap();
    times.sort_unstable();
    times
}

fn options(name: &str, setup: &Setup, side: usize) -> HostOptions {
    HostOptions {
        name: name.to_owned(),
        kind: setup.kind,
        cpu: setup.cpus[side],
        idle: setup.idle,
        clock: Clock::start(),
    }
}

fn open(driver: DriverRequest) -> Result<(TcpTransport, String), String> {
    let options = TcpOptions::default().with(|options| options.driver = driver);
    let (transport, choice) = TcpTransport::open(options).map_err(|error| error.to_string())?;
    Ok((transport, choice.to_string()))
}

struct EchoShard {
    transport: TcpTransport,
    echo: Echo,
}

struct Echo {
    side: Side,
    to_adopt: Vec<Accepted>,
    to_send: Vec<(LinkId, Box<Frame>)>,
    #[expect(clippy::vec_box, reason = "links take and give frames in boxes")]
    pool: Vec<Box<Frame>>,
    link: Option<LinkId>,
    is_done: bool,
    is_closed: bool,
}

enum Side {
    Server,
    Client {
        begin: Instant,
        times_ns: Vec<u64>,
        report: Sender<Vec<u64>>,
    },
}

impl EchoShard {
    fn new(transport: TcpTransport, side: Side) -> Self {
        Self {
            transport,
            echo: Echo {
                side,
                to_adopt: Vec::new(),
                to_send: Vec::new(),
                pool: Vec::new(),
                link: None,
                is_done: false,
                is_closed: false,
            },
        }
    }
}

impl ShardLoop for EchoShard {
    fn turn(&mut self, now: Time) -> usize {
        let events = self.transport.turn(now, &mut self.echo);
        for accepted in self.echo.to_adopt.drain(..) {
            self.transport
                .adopt(accepted, MESSAGE)
                .expect("one link has room");
        }
        for (link, frame) in self.echo.to_send.drain(..) {
            assert!(self.transport.send(link, frame).is_ok());
        }
        if self.echo.is_done
            && let Some(link) = self.echo.link.take()
        {
            self.transport.close(link, true);
        }
        events
    }

    fn next_timeout(&self) -> Option<Time> {
        None
    }

    fn park(&mut self, timeout: Option<Duration>) {
        self.transport.park(timeout).expect("the driver can sleep");
    }

    fn park_fd(&mut self) -> Option<BorrowedFd<'_>> {
        self.transport.park_fd()
    }

    fn patience(&mut self) -> Option<Duration> {
        self.transport.patience()
    }

    fn unpark(&mut self) {
        self.transport.unpark();
    }

    fn waker(&self) -> Waker {
        self.transport.waker()
    }

    fn die(self, error: &HostError) {
        panic!("{error}");
    }

    fn is_finished(&self) -> bool {
        self.echo.is_closed
    }
}

impl Echo {
    fn send(&mut self, link: LinkId) {
        let mut frame = self.pool.pop().unwrap_or_default();
        frame.clear();
        frame.bytes_mut().resize(MESSAGE_BYTES, 7);
        self.to_send.push((link, frame));
    }
}

impl LinkHandler<Accepted> for Echo {
    fn accepted(&mut self, _listener: ListenerId, _peer: SocketAddr, accepted: Accepted) {
        self.to_adopt.push(accepted);
    }

    fn connected(&mut self, link: LinkId) -> Next {
        self.link = Some(link);
        if let Side::Client { begin, .. } = &mut self.side {
            *begin = Instant::now();
        }
        self.send(link);
        MESSAGE
    }

    fn received(&mut self, link: LinkId, bytes: &[u8]) -> Progress {
        assert!(bytes[..MESSAGE_BYTES].iter().all(|byte| *byte == 7));
        let progress = Progress {
            consumed_bytes: MESSAGE_BYTES,
            next: MESSAGE,
        };
        if let Side::Client {
            begin,
            times_ns,
            report,
        } = &mut self.side
        {
            let now = Instant::now();
            times_ns.push((now - *begin).as_nanos() as u64);
            *begin = now;
            if times_ns.len() == times_ns.capacity() {
                self.is_done = true;
                report
                    .send(std::mem::take(times_ns))
                    .expect("the test listens");
                return progress;
            }
        }
        self.send(link);
        progress
    }

    fn landed(&mut self, _link: LinkId, _landing: Landing, _outcome: Outcome) -> Next {
        unreachable!("nothing lands")
    }

    fn sent(&mut self, _link: LinkId, frame: Box<Frame>, _outcome: Outcome) {
        self.pool.push(frame);
    }

    fn closed(&mut self, _link: LinkId, _reason: &CloseReason) {
        self.is_closed = true;
    }

    fn proven(&mut self, _: LinkId, _: Option<&grpcxx_transport::PeerName>) {}

    fn migration(&mut self, _: LinkId, _: Migration<'_>) {}
}

const MESSAGE_BYTES: usize = 64;
const MESSAGE: Next = Next::Head {
    at_least_bytes: MESSAGE_BYTES,
};
const PATIENCE: Duration = Duration::from_secs(60);
