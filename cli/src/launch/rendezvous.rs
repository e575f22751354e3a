//! Rank 0: waits for all ranks, tells each where the others are, and ends them together.

use std::collections::BTreeMap;
use std::io::{self, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::message::{
    self, Hello, Order, REPORT_BYTES_MAX, Report, VERSION, Welcome, versions_differ,
};
use super::{Address, Decision, Gang, LaunchError};

/// Where the ranks of a job meet.
#[derive(Clone, Debug)]
pub struct Rendezvous {
    /// `host:port` of rank 0.
    pub address: String,
    /// What all ranks of the job share.
    pub job: String,
    /// How many there are.
    pub size: u32,
    /// How long rank 0 waits for them, and they for it.
    pub timeout: Duration,
}

/// A rank that has said hello.
struct PendingPeer {
    hello: Hello,
    stream: TcpStream,
    /// Its host, as rank 0 sees it.
    ip: IpAddr,
    /// The host of rank 0, as it sees that one.
    own_ip: IpAddr,
}

/// Leads the job from a thread of its own: collects the ranks, and if there is a `gang`, stays
/// until its processes have ended; rank 0 is a member like all others. What goes wrong is told to
/// the members.
///
/// # Errors
/// The port of the rendezvous is taken, or its host is not this one.
pub fn lead(
    rendezvous: &Rendezvous,
    gang: Option<Gang>,
) -> Result<thread::JoinHandle<()>, LaunchError> {
    let look_up = || rendezvous.address.to_socket_addrs().map(Vec::from_iter);
    let listener = listen(rendezvous, look_up)?;
    let rendezvous = rendezvous.clone();
    thread::Builder::new()
        .name("rendezvous".to_owned())
        .spawn(move || {
            if let Some(members) = collect(&listener, &rendezvous)
                && let Some(gang) = gang
            {
                supervise(members, gang);
            }
        })
        .map_err(LaunchError::system("start a thread"))
}

/// Listens on the address itself if it is one of this host, so that a wrong host is told at once.
/// The name of a pod that has just begun may not lead anywhere yet.
fn listen(
    rendezvous: &Rendezvous,
    look_up: impl Fn() -> io::Result<Vec<SocketAddr>>,
) -> Result<TcpListener, LaunchError> {
    let address = &rendezvous.address;
    let action = format!("listen at the rendezvous {address}, which rank 0 does");
    let until = Instant::now() + rendezvous.timeout;
    let mut is_told = false;
    let found = loop {
        let error = match look_up() {
            Ok(found) => break found,
            Err(error) => error,
        };
        if error.kind() == io::ErrorKind::InvalidInput || Instant::now() >= until {
            return Err(LaunchError::system(&*action)(error));
        }
        if !std::mem::replace(&mut is_told, true) {
            tracing::warn!(
                address,
                %error,
                within = ?rendezvous.timeout,
                "the rendezvous has no address yet; trying again"
            );
        }
        thread::sleep(LOOK_UP_INTERVAL);
    };
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for candidate in found {
        // Names such as that of the host itself often lead to 127.0.1.1: others come from outside.
        let is_local = TcpListener::bind((candidate.ip(), 0)).is_ok();
        let is_own_name = is_local && candidate.ip() != IpAddr::V4(Ipv4Addr::LOCALHOST);
        let ip = if is_own_name {
            match candidate.ip() {
                IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                IpAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED),
            }
        } else {
            candidate.ip()
        };
        match TcpListener::bind((ip, candidate.port())) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(LaunchError::System {
        action,
        cause: last,
    })
}

/// Waits for all ranks. `None`: one did not come, and the others know.
fn collect(listener: &TcpListener, rendezvous: &Rendezvous) -> Option<Vec<TcpStream>> {
    let deadline = Instant::now() + rendezvous.timeout;
    let mut peers: BTreeMap<u32, PendingPeer> = BTreeMap::new();
    let (sender, arrivals) = channel();
    if let Err(error) = listener.set_nonblocking(true) {
        tracing::error!(%error, "the rendezvous cannot wait for ranks");
        return None;
    }
    let strangers = Arc::new(AtomicUsize::new(0));
    while !are_all_here(&mut peers, rendezvous.size) {
        if Instant::now() >= deadline {
            forget_who_left(&mut peers);
            let reason = missing(rendezvous, &peers).to_string();
            tracing::error!("{reason}");
            for peer in peers.values() {
                answer(&peer.stream, &Welcome::Refused(reason.clone()));
            }
            return None;
        }
        greet_all(listener, &sender, &strangers);
        let mut arrived = arrivals.recv_timeout(ACCEPT_INTERVAL).ok();
        while let Some(peer) = arrived {
            admit(peer, rendezvous, &mut peers);
            arrived = arrivals.try_recv().ok();
        }
    }
    let welcome = Welcome::Ranks(addresses(&peers));
    for peer in peers.values() {
        answer(&peer.stream, &welcome);
    }
    Some(peers.into_values().map(|peer| peer.stream).collect())
}

/// Whether each rank is there still, once all have come.
fn are_all_here(peers: &mut BTreeMap<u32, PendingPeer>, size: u32) -> bool {
    if peers.len() == size as usize {
        forget_who_left(peers);
    }
    peers.len() == size as usize
}

/// Drops the ranks that have hung up, such as those of a container that starts again: they may come
/// once more.
fn forget_who_left(peers: &mut BTreeMap<u32, PendingPeer>) {
    peers.retain(|rank, peer| {
        let has_left = peer.has_left();
        if has_left {
            tracing::warn!(peer = %peer.ip, "rank {rank} left before all were there");
        }
        !has_left
    });
}

/// Takes in those who wait at the door, as many as may be heard at a time. The others keep their
/// place in the line of the system.
fn greet_all(listener: &TcpListener, arrivals: &Sender<PendingPeer>, strangers: &Arc<AtomicUsize>) {
    for _ in 0..STRANGERS_MAX {
        if strangers.load(Ordering::Relaxed) >= STRANGERS_MAX {
            return;
        }
        let Ok((stream, _)) = listener.accept() else {
            return;
        };
        greet(stream, arrivals, strangers);
    }
}

/// Reads the first line of whoever came, on a thread of its own.
fn greet(stream: TcpStream, arrivals: &Sender<PendingPeer>, strangers: &Arc<AtomicUsize>) {
    strangers.fetch_add(1, Ordering::Relaxed);
    let (arrivals, counter) = (arrivals.clone(), Arc::clone(strangers));
    let greeter = move || {
        match listen_to(stream) {
            // The rendezvous may be over.
            Ok(peer) => drop(arrivals.send(peer)),
            Err(error) => tracing::warn!(%error, "who came to the rendezvous is no rank"),
        }
        counter.fetch_sub(1, Ordering::Relaxed);
    };
    if let Err(error) = thread::Builder::new()
        .name("greeter".to_owned())
        .spawn(greeter)
    {
        strangers.fetch_sub(1, Ordering::Relaxed);
        tracing::warn!(%error, "a rank was not heard");
    }
}

fn listen_to(stream: TcpStream) -> io::Result<PendingPeer> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(HELLO_TIMEOUT))?;
    stream.set_write_timeout(Some(HELLO_TIMEOUT))?;
    let hello = message::read(&mut BufReader::new(&stream), REPORT_BYTES_MAX)?;
    Ok(PendingPeer {
        hello,
        ip: stream.peer_addr()?.ip().to_canonical(),
        own_ip: stream.local_addr()?.ip().to_canonical(),
        stream,
    })
}

impl PendingPeer {
    /// Whether it has hung up. It says nothing until all are there, so a byte of it is no end.
    fn has_left(&self) -> bool {
        let peek = || {
            self.stream.set_nonblocking(true)?;
            let peeked = self.stream.peek(&mut [0]);
            self.stream.set_nonblocking(false)?;
            peeked
        };
        match peek() {
            Ok(count) => count == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }
}

fn admit(peer: PendingPeer, rendezvous: &Rendezvous, peers: &mut BTreeMap<u32, PendingPeer>) {
    let Hello {
        rank, size, job, ..
    } = &peer.hello;
    let refusal = if peer.hello.version != VERSION {
        Some(versions_differ(*rank, peer.hello.version, VERSION))
    } else if *job != rendezvous.job {
        Some("this is the rendezvous of another job; give each job its own port".to_owned())
    } else if *size != rendezvous.size {
        Some(format!(
            "rank 0 waits for {} ranks, but rank {rank} was told of {size}",
            rendezvous.size
        ))
    } else if *rank >= rendezvous.size || peers.get(rank).is_some_and(|known| !known.has_left()) {
        Some(format!(
            "rank {rank} is here already, or there is none; each rank comes once"
        ))
    } else {
        None
    };
    match refusal {
        Some(reason) => {
            tracing::warn!(peer = %peer.ip, "{reason}");
            answer(&peer.stream, &Welcome::Refused(reason));
        }
        None => {
            answer(&peer.stream, &Welcome::Known(VERSION));
            peers.insert(*rank, peer);
        }
    }
}

fn answer(stream: &TcpStream, welcome: &Welcome) {
    if let Err(error) = message::write(stream, welcome) {
        tracing::warn!(%error, "a rank did not take the answer of the rendezvous");
    }
}

/// Hosts as rank 0 sees them. Those on its own host it gives the address by which others see it.
fn addresses(peers: &BTreeMap<u32, PendingPeer>) -> Vec<Address> {
    let outside = peers.values().find(|peer| !peer.ip.is_loopback());
    let own_ip = outside.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |peer| peer.own_ip);
    let address = |peer: &PendingPeer| Address {
        ip: if peer.ip.is_loopback() {
            own_ip
        } else {
            peer.ip
        },
        grpc: peer.hello.grpc_port,
        star: peer.hello.star_port,
    };
    peers.values().map(address).collect()
}

fn missing(rendezvous: &Rendezvous, peers: &BTreeMap<u32, PendingPeer>) -> LaunchError {
    let absent = (0..rendezvous.size).filter(|rank| !peers.contains_key(rank));
    let (count, list) = ranges(absent);
    LaunchError::Missing {
        missing: format!("rank{} {list}", if count == 1 { "" } else { "s" }),
        size: rendezvous.size,
        address: rendezvous.address.clone(),
        waited: rendezvous.timeout,
    }
}

/// How many numbers there are, and their list as in `0, 3-5`.
fn ranges(numbers: impl Iterator<Item = u32>) -> (usize, String) {
    let mut count = 0;
    let mut found: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        count += 1;
        match found.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            Some(_) | None => found.push((number, number)),
        }
    }
    let text = found.into_iter().map(|(first, last)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    });
    (count, text.collect::<Vec<_>>().join(", "))
}

/// Hears the ends of all processes and tells all ranks what follows, until the job is over.
fn supervise(members: Vec<TcpStream>, mut gang: Gang) {
    let reports = match hear_all(&members) {
        Ok(reports) => reports,
        Err(error) => {
            order_all(
                &members,
                &Order::Fail(format!("rank 0 cannot hear the others: {error}")),
            );
            return;
        }
    };
    loop {
        let heard = match gang.decides_at() {
            Some(time) => reports.recv_timeout(time.saturating_duration_since(Instant::now())),
            None => reports.recv().map_err(RecvTimeoutError::from),
        };
        let now = Instant::now();
        let decision = match heard {
            Ok((rank, Some(Report::Ended { restart, end }))) => {
                gang.ended(rank, restart, &end, now);
                gang.decide(now)
            }
            Ok((rank, Some(Report::Stopped(restart)))) => {
                if gang.stopped(rank, restart) {
                    order_all(&members, &Order::Start(restart));
                }
                Decision::Continue
            }
            Ok((rank, None)) => gang.lost(rank),
            Err(RecvTimeoutError::Timeout) => gang.decide(now),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        match decision {
            Decision::Continue => {}
            Decision::Restart(number, reason) => {
                tracing::warn!(restart = number, "{reason}");
                order_all(&members, &Order::Stop(number));
            }
            Decision::Finish => {
                order_all(&members, &Order::Finish);
                break;
            }
            Decision::Fail(reason) => {
                order_all(&members, &Order::Fail(reason));
                break;
            }
        }
    }
    await_ends(&reports);
}

/// Gives the launchers of all ranks time to end their processes: some that started them end all
/// at once when the first is gone.
fn await_ends(reports: &Receiver<(u32, Option<Report>)>) {
    let deadline = Instant::now() + LEAVE_TIMEOUT;
    // The channel is closed when the last of them has hung up.
    while reports
        .recv_timeout(deadline.saturating_duration_since(Instant::now()))
        .is_ok()
    {}
}

/// The reports of all ranks, and `None` for one that is gone.
fn hear_all(members: &[TcpStream]) -> io::Result<Receiver<(u32, Option<Report>)>> {
    let (sender, reports) = channel();
    for (rank, stream) in (0..).zip(members) {
        stream.set_read_timeout(None)?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let sender = sender.clone();
        thread::Builder::new()
            .name("rank".to_owned())
            .stack_size(READER_STACK_BYTES)
            .spawn(move || {
                loop {
                    let report = message::read(&mut reader, REPORT_BYTES_MAX).ok();
                    let is_last = report.is_none();
                    if sender.send((rank, report)).is_err() || is_last {
                        return;
                    }
                }
            })?;
    }
    Ok(reports)
}

fn order_all(members: &[TcpStream], order: &Order) {
    for stream in members {
        // Who is gone needs no order.
        let _ = message::write(stream, order);
    }
}

/// Time from a look-up in vain to the next.
const LOOK_UP_INTERVAL: Duration = Duration::from_millis(100);
const ACCEPT_INTERVAL: Duration = Duration::from_millis(5);
/// How long who came may take to say which rank it is.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Most that have come and not yet said which rank they are.
const STRANGERS_MAX: usize = 256;
/// How long rank 0 waits for the others at the end; more than they give their processes.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(15);
const READER_STACK_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests;
