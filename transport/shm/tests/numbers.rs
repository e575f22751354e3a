//! A peer ends, another process gets its number, and somebody holds the end of the link meanwhile.
#![allow(
    clippy::print_stderr,
    reason = "says what was left out, and tells the test that started this"
)]

mod support;

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use grpcxx_shm::{RING_BYTES_MIN, ShmOptions};
use grpcxx_transport::CloseReason;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::RecvFlags;
use support::hostile::{MARK, Peer, RING, TAIL, shown};
use support::{PATIENCE, Side};

/// Numbers of processes can be chosen in a namespace of one's own.
const NAMESPACE: [&str; 5] = [
    "--user",
    "--map-root-user",
    "--pid",
    "--fork",
    "--kill-child",
];

#[test]
fn who_has_the_number_of_a_peer_is_not_read() {
    let probe = Command::new("unshare").args(NAMESPACE).arg("true").output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        eprintln!("SKIPPED: this process may not have a namespace of processes");
        return;
    }
    let ran = Command::new("unshare")
        .args(NAMESPACE)
        .arg(std::env::current_exe().unwrap())
        .args(["role", "--exact", "--nocapture"])
        .env(ROLE, "victim")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{output}");
    assert!(output.contains(NOTHING_READ), "{output}");
}

/// Not a test of its own: what the processes do that the test above starts.
#[test]
fn role() {
    match std::env::var(ROLE).as_deref() {
        Ok("victim") => victim(),
        Ok("peer") => peer(),
        Ok("holder") => holder(),
        Ok("stranger") => stranger(),
        _ => {}
    }
}

/// Has a link with the peer, which could be read once.
fn victim() {
    let mut side =
        Side::new(ShmOptions::default().with(|options| options.ring_bytes = RING_BYTES_MIN));
    let place = std::env::temp_dir().join(format!("grpcxx-secret-{:x}", fastrand::u64(..)));
    let address = side.listen();
    let mut peer = start("peer", &place, &[(ADDRESS, address.to_string())]);
    side.accept();
    side.until("the peer has ended", |_| peer.try_wait().unwrap().is_some());
    let stranger = start_as(peer.id(), &place);
    let secret = line(stranger, "secret at ");
    std::fs::write(&place, secret).unwrap();
    side.until("something came", |side| {
        !side.seen.messages.is_empty() || !side.seen.closed.is_empty()
    });
    std::fs::remove_file(&place).unwrap();
    assert!(
        side.seen.messages.is_empty(),
        "{:?}",
        &side.seen.messages[0][..]
    );
    let CloseReason::Failed(error) = &side.seen.closed[0] else {
        panic!("{:?}", side.seen.closed);
    };
    let error = error.to_string();
    assert!(
        error.contains("read the memory of the peer's process"),
        "{error}"
    );
    eprintln!("{NOTHING_READ}");
}

/// Shows that it can be read, leaves its end to another process, and ends.
fn peer() {
    let peer = Peer::dial(variable(ADDRESS).parse().unwrap());
    peer.hello(RING_BYTES_MIN as u64, Some(peer.segment.as_fd()));
    peer.be_seen();
    let end = Instant::now() + PATIENCE;
    let mut packet = [0; 64];
    while rustix::net::recv(&peer.socket, &mut packet, RecvFlags::empty()).is_err()
        || packet[0] != SEEN
    {
        assert!(Instant::now() < end, "this process can be read");
        std::thread::sleep(Duration::from_millis(1));
    }
    fcntl_setfd(&peer.socket, FdFlags::empty()).unwrap();
    fcntl_setfd(&peer.segment, FdFlags::empty()).unwrap();
    let segment = peer.segment.as_raw_fd().to_string();
    #[expect(clippy::zombie_processes, reason = "it outlives this process")]
    start("holder", Path::new(&variable(PLACE)), &[(SEGMENT, segment)]);
}

/// Has the peer's end of the link, and shows what it is told as if it were its own.
fn holder() {
    let segment = format!("/proc/self/fd/{}", variable(SEGMENT));
    let segment = OpenOptions::new().write(true).open(segment).unwrap();
    let end = Instant::now() + 2 * PATIENCE;
    let secret = loop {
        let told = std::fs::read_to_string(variable(PLACE)).ok();
        if let Some(address) = told.and_then(|text| text.trim().parse().ok()) {
            break address;
        }
        assert!(Instant::now() < end, "nobody told where the secret lies");
        std::thread::sleep(Duration::from_millis(1));
    };
    let mut records = (1u64 << 32 | 8).to_le_bytes().to_vec();
    records.extend_from_slice(&(LEN as u64).to_le_bytes());
    records.extend_from_slice(&shown(0, secret, LEN as u64));
    segment.write_all_at(&records, RING).unwrap();
    let tail = (records.len() as u64).to_le_bytes();
    segment.write_all_at(&tail, TAIL).unwrap();
    std::thread::sleep(2 * PATIENCE);
}

/// Has nothing to do with any of them.
fn stranger() {
    let mut output = std::io::stdout();
    writeln!(output, "secret at {}", MARK.as_ptr().addr()).unwrap();
    std::thread::sleep(2 * PATIENCE);
}

/// Starts a stranger until it has this number.
fn start_as(number: u32, place: &Path) -> Child {
    for _ in 0..20 {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (number - 1).to_string()).unwrap();
        let mut stranger = start("stranger", place, &[]);
        if stranger.id() == number {
            return stranger;
        }
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }
    panic!("nobody got the number {number}");
}

fn start(role: &str, place: &Path, variables: &[(&str, String)]) -> Child {
    let listened_to = role == "stranger";
    Command::new(std::env::current_exe().unwrap())
        .args(["role", "--exact", "--nocapture"])
        .env(ROLE, role)
        .env(PLACE, place)
        .envs(variables.iter().map(|(name, value)| (*name, value)))
        .stdout(if listened_to {
            Stdio::piped()
        } else {
            Stdio::null()
        })
        .spawn()
        .unwrap()
}

/// What follows `before` in a line that a process has written.
fn line(mut process: Child, before: &str) -> String {
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    let found = lines.find_map(|line| line.split_once(before).map(|(_, rest)| rest.to_owned()));
    found.unwrap()
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap()
}

const LEN: usize = 64;
const SEEN: u8 = 8;
const NOTHING_READ: &str = "nothing of a stranger was read";
const ROLE: &str = "TEST_ROLE";
const ADDRESS: &str = "TEST_ADDRESS";
const SEGMENT: &str = "TEST_SEGMENT";
const PLACE: &str = "TEST_PLACE";
