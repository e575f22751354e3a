//! Peers whose TLS is not ours: rustls with records of its own, and OpenSSL.

use std::io::Write;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use grpcxx_tls::{TlsMode, TlsOptions};
use grpcxx_transport::{CloseReason, Park, Transport};
use rcgen::SanType;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::SupportedCipherSuite;
use rustls::crypto::ring::cipher_suite;

use crate::ports::held_address;
use crate::support::peer::Peer;
use crate::support::side::{Side, message, message_bytes};
use crate::support::{Authority, Pem, share};

fn require() -> TlsOptions {
    TlsOptions::default().with(|options| options.mode = TlsMode::Require)
}

/// A certificate of a task of which also the address is known, for peers that check that.
fn pem(authority: &Authority) -> Pem {
    authority.sign(vec![
        SanType::URI("grpcxx://c/ps/0".try_into().unwrap()),
        SanType::IpAddress([127, 0, 0, 1].into()),
    ])
}

/// A server of ours, and a client of rustls.
fn client(options: TlsOptions, cipher: Option<SupportedCipherSuite>) -> (Side, Peer) {
    let authority = Authority::new();
    let pem = pem(&authority);
    let side = Side::new(options, share(authority.credentials(&pem)));
    let own = authority.sign_task("grpcxx://c/worker/1");
    let peer = Peer::client(side.connection(), &authority, Some(&own), cipher);
    (side, peer)
}

fn shake_hands(side: &mut Side, peer: &mut Peer) {
    side.until("the handshake is over", |_| {
        peer.pump(usize::MAX).unwrap();
        !peer.tls.is_handshaking() && peer.outbox.is_empty()
    });
}

/// The peer's bytes arrive in pieces of this length; what it says comes back to it.
fn exchange(side: &mut Side, peer: &mut Peer, piece_bytes: usize, sizes: &[usize]) {
    let mut said = Vec::new();
    for &size in sizes {
        let bytes: Vec<u8> = (0..size).map(|index| (index * 31 + size) as u8).collect();
        said.extend(message_bytes(&bytes));
    }
    peer.heard.clear();
    let mut left = &said[..];
    side.until("all came back", |_| {
        // As much as rustls keeps.
        let bytes = left.len().min(16 << 10);
        if peer.outbox.is_empty() && !peer.tls.is_handshaking() {
            peer.say(&left[..bytes]);
            left = &left[bytes..];
        }
        peer.pump(piece_bytes).unwrap();
        peer.heard.len() == said.len()
    });
    assert!(peer.heard == said, "bytes changed on their way");
}

#[test]
fn records_may_be_cut_at_every_byte() {
    for piece_bytes in [1, 2, 3, 5, 7, 21, 22, 23] {
        let (mut side, mut peer) = client(require(), None);
        exchange(&mut side, &mut peer, piece_bytes, &[0, 1, 30, 0, 500, 5000]);
        let link = side.seen.messages[0].0;
        let name = side.transport.peer_name(link).unwrap();
        assert_eq!(name.to_string(), "grpcxx://c/worker/1");
    }
}

#[test]
fn large_messages_come_whole_with_each_cipher() {
    for cipher in [
        cipher_suite::TLS13_AES_128_GCM_SHA256,
        cipher_suite::TLS13_AES_256_GCM_SHA384,
        cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ] {
        for piece_bytes in [4000, 16_406, 100_000] {
            let (mut side, mut peer) = client(require(), Some(cipher));
            let sizes = [20_000, 16_384, 3, 1 << 20, 0, 300_000, 1];
            exchange(&mut side, &mut peer, piece_bytes, &sizes);
        }
    }
}

#[test]
fn keys_are_replaced_by_both_ends_while_data_flows() {
    let options = require().with(|options| options.records_per_key = 3);
    let (mut side, mut peer) = client(options, None);
    shake_hands(&mut side, &mut peer);
    for _ in 0..20 {
        peer.tls.refresh_traffic_keys().unwrap();
        exchange(&mut side, &mut peer, 1000, &[100, 40_000]);
    }
}

#[test]
fn a_peer_that_says_goodbye_ends_the_stream() {
    let (mut side, mut peer) = client(require(), None);
    exchange(&mut side, &mut peer, usize::MAX, &[10]);
    peer.tls.send_close_notify();
    peer.pump(usize::MAX).unwrap();
    assert_eq!(side.end(), CloseReason::EndOfStream);
    side.until("it is answered", |_| {
        peer.pump(usize::MAX).is_err() || peer.is_done
    });
    assert!(peer.is_done, "our end came without a close_notify");
}

#[test]
fn we_say_goodbye_however_a_link_is_closed() {
    for flush in [true, false] {
        let (mut side, mut peer) = client(require(), None);
        exchange(&mut side, &mut peer, usize::MAX, &[10]);
        let link = side.seen.messages[0].0;
        // The frame that the peer has read is known to have left.
        side.turn();
        side.transport.close(link, flush);
        side.until("the peer hears of it", |_| {
            peer.pump(usize::MAX).unwrap();
            peer.is_done
        });
        assert_eq!(side.end(), CloseReason::Local);
    }
}

#[test]
fn a_long_message_leaves_though_its_side_sleeps_in_between() {
    let (mut side, mut peer) = client(require(), None);
    exchange(&mut side, &mut peer, usize::MAX, &[10]);
    let link = side.seen.messages[0].0;
    let heard = peer.heard.len() + (2 << 20);
    side.transport
        .send(link, message(&vec![7; 2 << 20]))
        .unwrap();
    side.transport.submit();
    let end = Instant::now() + Duration::from_secs(20);
    while peer.heard.len() < heard {
        assert!(Instant::now() < end, "it stays, and nothing wakes its side");
        peer.pump(usize::MAX).unwrap();
        if let Some(fd) = side.transport.park_fd() {
            let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            let moment = Timespec {
                tv_sec: 0,
                tv_nsec: 1_000_000,
            };
            let is_woken = poll(&mut fds, Some(&moment)).unwrap() > 0;
            side.transport.unpark();
            if !is_woken {
                continue;
            }
        }
        side.turn();
        side.transport.submit();
    }
}

#[test]
fn a_stream_that_is_cut_off_is_a_failure() {
    for part in [0, 3, 50] {
        let (mut side, mut peer) = client(require(), None);
        exchange(&mut side, &mut peer, usize::MAX, &[10]);
        peer.say(&message_bytes(&[7; 100]));
        peer.stream.set_nonblocking(false).unwrap();
        peer.stream.write_all(&peer.outbox[..part]).unwrap();
        drop(peer);
        let failure = side.failure();
        assert!(failure.contains("without a close_notify"), "{failure}");
        assert_eq!(side.transport.counters().broken, 0);
    }
}

#[test]
fn records_that_were_changed_repeated_or_left_out_end_the_link() {
    type Change = fn(Vec<u8>, Vec<u8>) -> Vec<u8>;
    let changes: [(Change, &str); 5] = [
        (
            |mut first, _| {
                first[9] ^= 1;
                first
            },
            "does not open",
        ),
        (|first, _| [first.clone(), first].concat(), "does not open"),
        (|_, second| second, "does not open"),
        (
            |mut first, _| {
                first[0] = 22;
                first
            },
            "type 22",
        ),
        (
            |mut first, _| {
                first[3] = 255;
                first
            },
            "17 to 16640",
        ),
    ];
    for (change, wanted) in changes {
        let (mut side, mut peer) = client(require(), None);
        exchange(&mut side, &mut peer, usize::MAX, &[10]);
        peer.say(&message_bytes(&[1; 50]));
        let first = std::mem::take(&mut peer.outbox);
        peer.say(&message_bytes(&[2; 50]));
        let second = std::mem::take(&mut peer.outbox);
        peer.outbox = change(first, second);
        peer.pump(usize::MAX).unwrap();
        let failure = side.failure();
        assert!(failure.contains(wanted), "{failure}");
        assert_eq!(side.transport.counters().broken, 1);
        // The peer is told why.
        let mut alert = Ok(());
        side.until("the alert comes", |_| {
            alert = peer.pump(usize::MAX);
            alert.is_err()
        });
        assert!(alert.unwrap_err().contains("alert"));
    }
}

#[test]
fn we_dial_servers_that_are_not_ours_and_ignore_their_tickets() {
    let authority = Authority::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut side = Side::new(require(), authority.task("grpcxx://c/worker/0"));
    let link = side
        .transport
        .connect(listener.local_addr().unwrap())
        .unwrap();
    let (stream, _) = listener.accept().unwrap();
    let mut peer = Peer::server(stream, &authority, &pem(&authority));
    side.until("the dial succeeds", |side| {
        peer.pump(usize::MAX).unwrap();
        !side.seen.connected.is_empty()
    });
    let name = side.transport.peer_name(link).unwrap().to_string();
    assert_eq!(name, "grpcxx://c/ps/0");
    for size in [100, 100_000] {
        side.transport.send(link, message(&vec![5; size])).unwrap();
        side.until("the message comes", |_| {
            peer.pump(usize::MAX).unwrap();
            peer.heard.len() == size + 8
        });
        peer.heard.clear();
    }
    exchange(&mut side, &mut peer, 10_000, &[0, 77, 50_000]);
}

/// OpenSSL with files of its own, if it is installed; says so if not.
#[allow(clippy::print_stderr)]
fn openssl(folder: &std::path::Path, what: &[&str]) -> Option<Child> {
    let child = Command::new("openssl")
        .args(what)
        .args([
            "-tls1_3", "-cert", "cert.pem", "-key", "key.pem", "-CAfile", "ca.pem",
        ])
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    child
        .inspect_err(|error| eprintln!("skipped: openssl: {error}"))
        .ok()
}

fn write_files(folder: &std::path::Path, authority: &Authority, pem: &Pem) {
    std::fs::write(folder.join("ca.pem"), &authority.certificate).unwrap();
    std::fs::write(folder.join("cert.pem"), &pem.certificate).unwrap();
    std::fs::write(folder.join("key.pem"), &pem.key).unwrap();
}

#[test]
fn openssl_calls_us_and_replaces_keys() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let own = authority.sign_task("grpcxx://c/worker/9");
    write_files(folder.path(), &authority, &own);
    let mut side = Side::new(require(), share(authority.credentials(&pem(&authority))));
    let address = side.address.to_string();
    let what = ["s_client", "-connect", &address, "-verify_return_error"];
    let Some(mut child) = openssl(folder.path(), &what) else {
        return;
    };
    let mut stdin = child.stdin.take().unwrap();
    for round in 1..=3 {
        stdin.write_all(&message_bytes(b"12345678\n")).unwrap();
        side.until("the message comes", |side| {
            side.seen.messages.len() == round
        });
        assert_eq!(side.seen.messages[round - 1].1, b"12345678\n");
        // A line of its own: new keys for both ends.
        stdin.write_all(b"K\n").unwrap();
        // OpenSSL takes what it reads together with a command for a part of that.
        let end = Instant::now() + Duration::from_millis(200);
        side.until("OpenSSL has read it", |_| Instant::now() > end);
    }
    let link = side.seen.messages[0].0;
    let name = side.transport.peer_name(link).unwrap().to_string();
    assert_eq!(name, "grpcxx://c/worker/9");
    drop(stdin);
    assert_eq!(side.end(), CloseReason::EndOfStream);
    assert_eq!(side.transport.counters().replaced_keys, 6);
    child.wait().unwrap();
}

#[test]
fn we_call_openssl() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    write_files(folder.path(), &authority, &pem(&authority));
    let port = held_address();
    let accept = port.to_string();
    let what = [
        "s_server",
        "-accept",
        &accept,
        "-Verify",
        "1",
        "-quiet",
        "-verify_return_error",
    ];
    let Some(mut child) = openssl(folder.path(), &what) else {
        return;
    };
    let mut side = Side::new(require(), authority.task("grpcxx://c/worker/0"));
    // Until it listens.
    let mut link = side.transport.connect(port).unwrap();
    side.until("the dial succeeds", |side| {
        if side.seen.closed.contains_key(&link) {
            link = side.transport.connect(port).unwrap();
        }
        side.seen.connected.contains(&link)
    });
    child
        .stdin
        .take()
        .unwrap()
        .write_all(&message_bytes(b"from openssl\n"))
        .unwrap();
    side.until("a message comes", |side| !side.seen.messages.is_empty());
    assert_eq!(side.seen.messages[0].1, b"from openssl\n");
    child.kill().unwrap();
    child.wait().unwrap();
}
