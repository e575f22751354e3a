//! What stays when a process is killed.

mod support;

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grpcxx_memory::Buffer;
use grpcxx_shm::ShmOptions;
use grpcxx_transport::{CloseReason, Transport};
use support::*;

/// Not a test of its own: what the other process does, when one of the tests starts it.
#[test]
fn child() {
    let Ok(address) = std::env::var("GRPCXX_TEST_PEER") else {
        return;
    };
    let address: SocketAddr = address.parse().unwrap();
    let mut side = Side::new(ShmOptions::default());
    side.seen.borrows = true;
    let link = side.dial(address);
    let mut arena = shared_arena();
    side.send(link, &payload(&mut arena, LEN, 1));
    if std::env::var_os("GRPCXX_TEST_SHOWS").is_some() {
        let mut arena = private_arena();
        for round in 2..ROUNDS {
            side.send(link, &payload(&mut arena, LEN, round));
            // The last leave while this end closes.
            side.until("some have left", |side| side.seen.sent.len() + 2 > round);
        }
        side.transport.close(link, true);
        return side.until("it is closed", |side| !side.seen.closed.is_empty());
    }
    // Borrows what comes, and keeps it.
    loop {
        side.turn();
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn start(address: SocketAddr, variables: &[(&str, &str)]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact"])
        .env("GRPCXX_TEST_PEER", address.to_string())
        .envs(variables.iter().copied())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Keeps the other tests of this process away, whose links would count too.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Descriptors and mappings of this process that belong to links.
fn traces() -> (usize, usize) {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let fds = fds.filter(|fd| {
        let target = std::fs::read_link(fd.as_ref().unwrap().path());
        target.is_ok_and(|target| target.to_string_lossy().contains("grpcxx"))
    });
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let maps = maps.lines().filter(|line| line.contains("memfd:grpcxx"));
    (fds.count(), maps.count())
}

#[test]
fn a_killed_peer_leaves_nothing_behind() {
    let _alone = alone();
    let before = traces();
    for _ in 0..5 {
        let mut side = Side::new(ShmOptions::default());
        side.seen.borrows = true;
        let address = side.listen();
        let mut child = start(address, &[]);
        let link = side.accept();
        side.until("its tensor came", |side| !side.seen.messages.is_empty());
        let mut arena = shared_arena();
        side.send(link, &payload(&mut arena, LEN, 2));
        side.until("ours has left", |side| !side.seen.sent.is_empty());
        // Copies that it has borrowed, and one that is on its way when it is killed.
        side.until("it has borrowed", |side| {
            let heap = Buffer::from(pattern(LEN, 3));
            side.send(link, &heap);
            side.turn();
            side.transport.counters().bounced_bytes > 0
        });
        let on_its_way = Buffer::from(pattern(128 << 20, 4));
        side.send(link, &on_its_way);
        child.kill().unwrap();
        child.wait().unwrap();
        side.until("its end is noticed", |side| !side.seen.closed.is_empty());
        let reason = &side.seen.closed[0];
        assert!(matches!(reason, CloseReason::Failed(_)), "{reason}");
        // What it has lent stays readable, and what it has borrowed comes home.
        assert_eq!(side.seen.messages[0][..], pattern(LEN, 1));
        assert!(on_its_way.is_unique(), "it came back");
        side.until("the loan comes home", |_| {
            arena.reclaim();
            arena.statistics().in_use_bytes == 0
        });
        drop((side, arena));
        assert_eq!(traces(), before);
    }
    let left = std::fs::read_dir("/dev/shm").unwrap();
    let ours = left.filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().contains("grpcxx")
    });
    assert_eq!(ours.count(), 0);
}

/// Memory for copies is there as long as a link or a loan.
#[test]
fn copies_keep_no_memory_behind_the_last_link() {
    let _alone = alone();
    let before = traces();
    let (mut a, near, mut b, _) = pair(&ShmOptions::default());
    b.seen.borrows = true;
    for count in 1..=2 {
        a.send(near, &Buffer::from(pattern(100_000, 1)));
        both(&mut a, &mut b, "it came", |_, b| b.messages.len() == count);
    }
    assert_eq!(a.transport.counters().bounced_bytes, 100_000);
    a.transport.close(near, true);
    both(&mut a, &mut b, "both closed", |a, b| {
        a.closed.len() + b.closed.len() == 2
    });
    assert!(traces() > before, "one is borrowed");
    assert_eq!(b.seen.messages.pop_back().unwrap()[..], pattern(100_000, 1));
    a.until("the loan comes home", |_| traces() == before);
}

#[test]
fn another_process_is_read_until_it_has_closed() {
    let _alone = alone();
    let mut side = Side::new(ShmOptions::default());
    let address = side.listen();
    let mut child = start(address, &[("GRPCXX_TEST_SHOWS", "1")]);
    side.accept();
    side.until("it has closed", |side| !side.seen.closed.is_empty());
    assert_eq!(side.seen.closed[0], CloseReason::EndOfStream);
    assert_eq!(side.seen.messages.len(), ROUNDS - 1);
    for (round, got) in side.seen.messages.iter().enumerate() {
        assert_eq!(got[..], pattern(LEN, round + 1));
    }
    assert!(child.wait().unwrap().success());
    let seen_bytes = side.transport.counters().seen_bytes;
    assert!(
        seen_bytes > 0 || !can_show_memory(),
        "the other process can be read"
    );
}

const LEN: usize = 7 << 20;

const ROUNDS: usize = 20;
