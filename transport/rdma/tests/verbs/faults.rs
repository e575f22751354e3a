use std::net::SocketAddr;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use grpcxx_memory::{Arena, ArenaOptions, Buffer};
use grpcxx_rdma::RdmaOptions;
use grpcxx_tcp::Accepted;
use grpcxx_transport::conformance::Ledger;
use grpcxx_transport::{CloseReason, LinkId, Time, Transport};

use crate::talker::{HEAD, Talker};
use crate::world::{Links, has_device, open};

/// One side of a link, in real time.
struct Side {
    transport: Ledger<Links>,
    talker: Talker<Accepted>,
    address: SocketAddr,
    start: Instant,
}

impl Side {
    fn new(name: &str, options: RdmaOptions) -> Self {
        let mut transport = Ledger::new(open(options), name);
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let (_, address) = transport.listen(address).expect("a port is free");
        Self {
            transport,
            talker: Talker::new(None),
            address,
            start: Instant::now(),
        }
    }

    fn turn(&mut self) {
        let now = Time::ZERO + self.start.elapsed();
        self.transport.turn(now, &mut self.talker);
        while let Some(accepted) = self.talker.accepted.pop_front() {
            let link = self.transport.adopt(accepted, HEAD).expect("there is room");
            self.talker.links.entry(link).or_default().is_open = true;
        }
    }

    fn dial(&mut self, address: SocketAddr) -> LinkId {
        let link = self.transport.connect(address).expect("a dial can start");
        self.talker.links.entry(link).or_default();
        link
    }

    fn send(&mut self, link: LinkId, payload_bytes: usize) {
        let frame = self.talker.frame(link, payload_bytes);
        assert!(self.transport.send(link, frame).is_ok());
    }

    fn only_link(&self) -> Option<LinkId> {
        self.talker.links.keys().next().copied()
    }

    fn closed(&self, link: LinkId) -> Option<&CloseReason> {
        self.talker.links[&link].closed.as_ref()
    }
}

/// Turns until something holds, and says how long that took.
fn until(what: &str, sides: &mut [&mut Side], holds: impl Fn(&[&mut Side]) -> bool) -> Duration {
    let start = Instant::now();
    while !holds(sides) {
        sides.iter_mut().for_each(|side| side.turn());
        std::thread::yield_now();
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "in vain until {what}"
        );
    }
    start.elapsed()
}

fn connected(options: &RdmaOptions) -> (Side, Side, LinkId, LinkId) {
    let mut near = Side::new("near", options.clone());
    let mut far = Side::new("far", options.clone());
    let link = near.dial(far.address);
    until("the link is open", &mut [&mut near, &mut far], |sides| {
        sides[0].talker.links[&link].is_open && sides[1].only_link().is_some()
    });
    let there = far.only_link().expect("a link was adopted");
    (near, far, link, there)
}

fn close_all(sides: &mut [&mut Side]) {
    for side in sides.iter_mut() {
        let links: Vec<LinkId> = side.transport.links().collect();
        for link in links {
            side.transport.close(link, false);
        }
    }
    until("all links are gone", sides, |sides| {
        (sides.iter()).all(|side| side.transport.links().next().is_none())
    });
    for side in sides {
        side.transport.assert_settled();
    }
}

#[test]
fn a_key_that_is_revoked_ends_the_link_at_both_ends() {
    if !has_device() {
        return;
    }
    let (mut near, mut far, link, there) = connected(&RdmaOptions::default());
    let payload = Buffer::from(vec![0; 32 << 20]);
    let mut frame = near.talker.frame(link, 0);
    frame.bytes_mut()[4..8].copy_from_slice(&(32u32 << 20).to_le_bytes());
    frame.attach(payload.clone());
    assert!(near.transport.send(link, frame).is_ok());
    while near.transport.inner_mut().counters().offers_sent == 0 {
        near.turn();
    }
    let revoked = near.transport.inner_mut().links_mut().revoke(&payload);
    assert_eq!(revoked, 1);
    until(
        "both ends are closed",
        &mut [&mut near, &mut far],
        |sides| sides[0].closed(link).is_some() && sides[1].closed(there).is_some(),
    );
    let reason = far
        .closed(there)
        .map(ToString::to_string)
        .unwrap_or_default();
    assert!(reason.contains("remote access error"), "{reason}");
    let talk = &near.talker.links[&link];
    assert_eq!(talk.left + talk.lost, 1);
    assert_eq!(far.talker.links[&there].landings_lost, 1);
    close_all(&mut [&mut near, &mut far]);
}

#[test]
fn a_queue_that_answers_no_more_ends_the_link() {
    if !has_device() {
        return;
    }
    let options = RdmaOptions::default().with(|options| {
        options.timeout = 10;
        options.retries = 2;
    });
    let (mut near, mut far, link, there) = connected(&options);
    // The peer's thread is stuck: its queue is broken, and nobody tells.
    assert!(far.transport.inner_mut().links_mut().break_queue(there));
    near.send(link, 100);
    until("the near end is closed", &mut [&mut near], |sides| {
        sides[0].closed(link).is_some()
    });
    let reason = near
        .closed(link)
        .map(ToString::to_string)
        .unwrap_or_default();
    assert!(reason.contains("retry counter exceeded"), "{reason}");
    close_all(&mut [&mut near, &mut far]);
}

#[test]
fn a_queue_that_fails_here_ends_the_link_within_50_ms() {
    if !has_device() {
        return;
    }
    let (mut near, mut far, link, there) = connected(&RdmaOptions::default());
    assert!(near.transport.inner_mut().links_mut().break_queue(link));
    let time = until(
        "both ends are closed",
        &mut [&mut near, &mut far],
        |sides| sides[0].closed(link).is_some() && sides[1].closed(there).is_some(),
    );
    assert!(time < Duration::from_millis(50), "it took {time:?}");
    close_all(&mut [&mut near, &mut far]);
}

#[test]
fn a_receiver_that_does_not_look_is_never_overrun() {
    if !has_device() {
        return;
    }
    let options = RdmaOptions::default().with(|options| options.completion_entries = 32);
    let (mut near, mut far, link, there) = connected(&options);
    for _ in 0..500 {
        near.send(link, 3000);
    }
    // Only the sender turns: all that it may send lies at the receiver, and not a message more.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(300) {
        near.turn();
    }
    let sent = near.transport.inner_mut().counters().messages_sent;
    assert!(
        sent <= u64::from(options.credits.messages),
        "{sent} messages"
    );
    until("all frames are read", &mut [&mut near, &mut far], |sides| {
        sides[1].talker.links[&there].read == 500
    });
    let counters = near.transport.inner_mut().counters();
    assert_eq!(counters.failures, 0);
    close_all(&mut [&mut near, &mut far]);
}

#[test]
fn links_work_with_whatever_memory_may_be_locked() {
    if !has_device() {
        return;
    }
    let (mut near, mut far, link, there) = connected(&RdmaOptions::default());
    let options = ArenaOptions::default().with(|options| {
        options.capacity_bytes = 256 << 20;
        options.huge_pages = false;
    });
    let mut arena = Arena::new(options).expect("an arena");
    let transport = near.transport.inner_mut();
    let registered = transport.register_arena(&mut arena).expect("an anchor");
    assert!(registered <= 256 << 20);
    for size in [100, 10_000, 1 << 20, 16 << 20] {
        near.send(link, size);
        far.send(there, size);
    }
    until("all frames are read", &mut [&mut near, &mut far], |sides| {
        sides[0].talker.links[&link].read == 4 && sides[1].talker.links[&there].read == 4
    });
    let counters = near.transport.inner_mut().counters();
    if std::env::var_os("GRPCXX_RDMA_LITTLE_MEMORY").is_some() {
        assert!(registered < 256 << 20 && counters.registrations_refused > 0);
    }
    close_all(&mut [&mut near, &mut far]);
}

/// Tells the child process where to dial.
const CHILD: &str = "GRPCXX_TEST_CHILD_DIALS";

/// A process that offers more and more payload until it is killed.
fn child(address: &str) {
    let mut side = Side::new("child", RdmaOptions::default());
    let link = side.dial(address.parse().expect("an address"));
    while side.closed(link).is_none() {
        side.turn();
        let talk = &side.talker.links[&link];
        if talk.is_open && talk.sent < talk.left + 8 {
            side.send(link, 16 << 20);
        }
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_peer_killed_in_the_middle_of_a_read_loses_its_link_and_nothing_else() {
    if let Ok(address) = std::env::var(CHILD) {
        return child(&address);
    }
    if !has_device() {
        return;
    }
    let name = "faults::a_peer_killed_in_the_middle_of_a_read_loses_its_link_and_nothing_else";
    let mut side = Side::new("reader", RdmaOptions::default());
    for round in 0..3u64 {
        let known = side.talker.links.len();
        let program = std::env::current_exe().expect("a test knows its program");
        let process = Command::new(program)
            .args(["--exact", name])
            .env(CHILD, side.address.to_string())
            .spawn();
        let mut process = Killed(process.expect("the program starts"));
        until("a payload was read", &mut [&mut side], |sides| {
            sides[0].talker.links.len() > known
                && (sides[0].talker.links.values())
                    .any(|talk| talk.is_open && talk.read > round as u32)
        });
        let open = side.talker.links.iter().find(|(_, talk)| talk.is_open);
        let link = *open.expect("one is open").0;
        process.0.kill().expect("a child can be killed");
        let time = until("the link is closed", &mut [&mut side], |sides| {
            sides[0].closed(link).is_some()
        });
        assert!(time < Duration::from_secs(2), "it took {time:?}");
        assert!(side.talker.links[&link].landings_lost <= 16);
    }
    close_all(&mut [&mut side]);
}

/// Takes the device away, so nothing else can be tested afterwards: `scripts/rdma-guest` runs it
/// last and alone.
#[test]
#[ignore = "takes the device away"]
fn a_device_that_is_removed_ends_its_links() {
    if !has_device() {
        return;
    }
    let (mut near, mut far, link, there) = connected(&RdmaOptions::default());
    near.send(link, 1000);
    until("a frame is read", &mut [&mut near, &mut far], |sides| {
        sides[1].talker.links[&there].read == 1
    });
    let device = near.transport.inner_mut().links_mut().device().to_owned();
    let device = device.split(' ').next().expect("a name").to_owned();
    let removal = Command::new("rdma")
        .args(["link", "delete", &device])
        .spawn();
    let mut removal = Killed(removal.expect("the program rdma is there"));
    // A driver may tell the users of the device, or wait for them to go: then links go on as they
    // are.
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) && near.closed(link).is_none() {
        near.turn();
        far.turn();
    }
    let was_told = near.closed(link).is_some();
    close_all(&mut [&mut near, &mut far]);
    drop((near, far));
    let start = Instant::now();
    while removal
        .0
        .try_wait()
        .expect("a child can be asked")
        .is_none()
    {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "the device cannot be removed: a link holds it still (was told: {was_told})"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    let gone = grpcxx_rdma::VerbsAdapter::open(&RdmaOptions::default()).err();
    assert!(gone.is_some(), "the device is still there");
}
