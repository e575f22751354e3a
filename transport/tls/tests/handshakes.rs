//! Who gets in, who does not, and how long that may take.

use std::io::Write;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use grpcxx_tls::{Credentials, PemTexts, TlsMode, TlsOptions};
use grpcxx_transport::{CloseReason, Park, Transport};
use proptest::prelude::*;
use rcgen::SanType;

use crate::support;
use crate::support::peer::Peer;
use crate::support::side::{Side, message_bytes};
use crate::support::{Authority, share};

fn options(mode: TlsMode) -> TlsOptions {
    TlsOptions::default().with(|options| {
        options.mode = mode;
        options.handshake_time = Duration::from_millis(300);
    })
}

/// Two sides of ours: the first dials the second. Returns both errors, or `None` if they connect.
fn meet(client: &mut Side, server: &mut Side) -> Option<[String; 2]> {
    let link = client.transport.connect(server.address).unwrap();
    server.until("the dial ends", |_| {
        client.turn();
        client.seen.closed.contains_key(&link) || client.seen.connected.contains(&link)
    });
    // A server may refuse a client that believes it is in.
    server.until("both know", |server| {
        client.turn();
        !server.seen.closed.is_empty()
            || server.transport.counters().handshakes > 0
            || server.transport.counters().plain > 0
            || client.seen.closed.contains_key(&link)
    });
    if server.seen.closed.is_empty() && client.seen.closed.is_empty() {
        return None;
    }
    Some([client.distrust(), server.distrust()])
}

fn require(authority: &Authority, name: &str) -> Side {
    Side::new(options(TlsMode::Require), authority.task(name))
}

#[test]
fn tasks_of_one_cluster_meet_and_know_each_other() {
    let authority = Authority::new();
    let mut client = require(&authority, "grpcxx://c/worker/0");
    let mut server = require(&authority, "grpcxx://c/ps/1");
    assert_eq!(meet(&mut client, &mut server), None);
    let link = client.seen.connected[0];
    assert!(client.transport.is_tls(link));
    let name = client.transport.peer_name(link).unwrap();
    assert_eq!((&*name.job, name.index), ("ps", 1));
}

#[test]
fn tasks_of_another_cluster_are_refused() {
    let authority = Authority::new();
    let mut client = require(&authority, "grpcxx://blue/worker/0");
    let mut server = require(&authority, "grpcxx://green/ps/0");
    let [client, server] = meet(&mut client, &mut server).unwrap();
    assert!(client.contains("grpcxx://green/ps/0"), "{client}");
    assert!(client.contains("of cluster blue"), "{client}");
    assert!(server.contains("TLS handshake with 127.0.0.1"), "{server}");
}

#[test]
fn certificates_of_another_authority_are_refused() {
    let mut client = require(&Authority::new(), "grpcxx://c/worker/0");
    let mut server = require(&Authority::new(), "grpcxx://c/ps/0");
    let [client, server] = meet(&mut client, &mut server).unwrap();
    assert!(client.contains("invalid peer certificate"), "{client}");
    assert!(server.contains("alert"), "{server}");
}

#[test]
fn a_server_without_the_name_of_a_task_must_have_its_address() {
    let authority = Authority::new();
    for (address, is_good) in [([127, 0, 0, 1], true), ([127, 0, 0, 9], false)] {
        let pem = authority.sign(vec![SanType::IpAddress(IpAddr::from(address))]);
        let credentials = share(authority.credentials(&pem));
        let mut server = Side::new(options(TlsMode::Require), credentials);
        let mut client = require(&authority, "grpcxx://c/worker/0");
        assert_eq!(meet(&mut client, &mut server).is_none(), is_good);
    }
}

#[test]
fn a_client_without_a_certificate_is_refused() {
    let authority = Authority::new();
    let address = SanType::IpAddress([127, 0, 0, 1].into());
    let credentials = share(authority.credentials(&authority.sign(vec![address])));
    let mut side = Side::new(options(TlsMode::Require), credentials);
    let mut peer = Peer::client(side.connection(), &authority, None, None);
    let mut alert = Ok(());
    side.until("the peer is refused", |_| {
        alert = peer.pump(usize::MAX);
        alert.is_err()
    });
    assert!(alert.unwrap_err().contains("CertificateRequired"));
    let distrust = side.distrust();
    assert!(distrust.contains("no certificates"), "{distrust}");
}

#[test]
fn a_dialler_never_falls_back_to_plain_bytes() {
    let authority = Authority::new();
    let mut server = Side::new(options(TlsMode::Off), authority.task("grpcxx://c/ps/0"));
    let mut client = require(&authority, "grpcxx://c/worker/0");
    let link = client.transport.connect(server.address).unwrap();
    client.until("the dial fails", |client| {
        server.turn();
        client.seen.closed.contains_key(&link)
    });
    assert!(client.seen.connected.is_empty());
    assert!(client.failure().contains("TLS handshake with"));
}

#[test]
fn modes_say_who_may_come_without_tls() {
    let authority = Authority::new();
    for (mode, dials, is_taken) in [
        (TlsMode::Accept, TlsMode::Off, true),
        (TlsMode::Accept, TlsMode::Require, true),
        (TlsMode::Accept, TlsMode::Accept, true),
        (TlsMode::Dial, TlsMode::Off, true),
        (TlsMode::Require, TlsMode::Dial, true),
    ] {
        let mut client = Side::new(options(dials), authority.task("grpcxx://c/worker/0"));
        let mut server = Side::new(options(mode), authority.task("grpcxx://c/ps/0"));
        let link = client.transport.connect(server.address).unwrap();
        client.until("the dial succeeds", |client| {
            server.turn();
            client.seen.connected.contains(&link)
        });
        assert_eq!(client.transport.is_tls(link), dials.dials());
        client
            .transport
            .send(link, support::side::message(b"hello"))
            .unwrap();
        client.until("the answer comes", |client| {
            server.turn();
            server.echo();
            !client.seen.messages.is_empty()
        });
        assert_eq!(
            is_taken,
            server.seen.closed.is_empty(),
            "{dials} calls {mode}"
        );
        let plain = server.transport.counters().plain;
        assert_eq!(plain, u64::from(!dials.dials()), "{dials} calls {mode}");
    }
}

#[test]
fn plain_bytes_are_refused_where_tls_is_required() {
    let authority = Authority::new();
    let mut side = require(&authority, "grpcxx://c/ps/0");
    side.connection()
        .write_all(&message_bytes(b"AAAA"))
        .unwrap();
    let failure = side.failure();
    assert!(failure.contains("GRPCXX_TLS_PLAIN"), "{failure}");
    assert_eq!(side.transport.counters().plain_refused, 1);
    assert!(side.seen.messages.is_empty());
}

#[test]
fn peers_that_are_named_may_do_without_tls() {
    let authority = Authority::new();
    let options = options(TlsMode::Require)
        .with(|options| options.plain_peers = Arc::new(|address: IpAddr| address.is_loopback()));
    let mut side = Side::new(options.clone(), authority.task("grpcxx://c/ps/0"));
    let mut stream = side.connection();
    stream.write_all(&message_bytes(b"plain")).unwrap();
    side.until("the message comes", |side| side.seen.messages.len() == 1);
    // They are dialled without TLS, too.
    let mut client = Side::new(options, authority.task("grpcxx://c/worker/0"));
    let link = client.transport.connect(side.address).unwrap();
    client.until("the dial succeeds", |client| {
        client.seen.connected.contains(&link)
    });
    assert!(!client.transport.is_tls(link));
}

#[test]
fn peers_that_let_their_time_pass_are_left() {
    let authority = Authority::new();
    for first in [&b""[..], &[22], &[22, 3, 1, 2, 0]] {
        let mut side = require(&authority, "grpcxx://c/ps/0");
        let mut stream = side.connection();
        stream.write_all(first).unwrap();
        let failure = side.failure();
        assert!(failure.contains("it took too long"), "{failure}");
    }
}

#[test]
fn a_silent_peer_may_wait_where_it_may_be_plain() {
    let authority = Authority::new();
    let mut side = Side::new(options(TlsMode::Accept), authority.task("grpcxx://c/ps/0"));
    let mut stream = side.connection();
    let end = std::time::Instant::now() + Duration::from_millis(600);
    side.until("twice the time is over", |_| {
        std::time::Instant::now() > end
    });
    assert!(side.seen.closed.is_empty());
    stream.write_all(&message_bytes(b"late")).unwrap();
    side.until("the message comes", |side| side.seen.messages.len() == 1);
}

#[test]
fn a_side_that_sleeps_elsewhere_knows_how_long_a_silent_peer_may_take() {
    let authority = Authority::new();
    let mut side = Side::new(options(TlsMode::Require), authority.task("grpcxx://c/ps/0"));
    assert_eq!(side.transport.patience(), None);
    let _silent = side.connection();
    side.until("it is let in", |side| side.transport.patience().is_some());
    let end = std::time::Instant::now() + support::side::PATIENCE;
    let (mut sleeps, mut longest) = (0, Duration::ZERO);
    while side.seen.closed.is_empty() {
        assert!(std::time::Instant::now() < end, "it is never closed");
        if side.transport.park_fd().is_some()
            && let Some(limit) = side.transport.patience()
        {
            std::thread::sleep(limit);
            (sleeps, longest) = (sleeps + 1, longest.max(limit));
        }
        side.transport.unpark();
        side.turn();
    }
    assert!(sleeps > 0 && longest <= Duration::from_millis(300));
    assert!(side.failure().contains("it took too long"));
    assert_eq!(side.transport.patience(), None);
}

#[test]
fn many_dials_at_once_get_through_with_few_handshakes_at_a_time() {
    let authority = Authority::new();
    let options = options(TlsMode::Require).with(|options| {
        options.handshakes_max = 2;
        options.steps_per_turn = 1;
        options.handshake_time = Duration::from_secs(20);
    });
    let mut server = Side::new(options.clone(), authority.task("grpcxx://c/ps/0"));
    let mut client = Side::new(options, authority.task("grpcxx://c/worker/0"));
    for _ in 0..40 {
        client.transport.connect(server.address).unwrap();
    }
    client.until("all are connected", |client| {
        server.turn();
        client.seen.connected.len() == 40
    });
}

#[test]
fn a_handshake_that_cannot_begin_leaves_its_place_to_the_next() {
    let authority = Authority::new();
    let options = options(TlsMode::Require).with(|options| {
        options.handshakes_max = 1;
        options.handshake_time = Duration::from_secs(3600);
    });
    let shared = authority.task("grpcxx://c/worker/0");
    let mut client = Side::new(options, shared.clone());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let links = [(); 3].map(|()| client.transport.connect(address).unwrap());
    let mut peers = Vec::new();
    client.until("one begins, and the others wait", |_| {
        peers.extend(listener.accept().map(|(peer, _)| peer));
        peers.len() == links.len() && peers.iter().any(has_heard)
    });
    let task = authority.sign_task("grpcxx://c/worker/0");
    let without_authorities = Credentials::from_pem(PemTexts {
        certificates: task.certificate.as_bytes(),
        key: task.key.as_bytes(),
        authorities: None,
        is_mutual: true,
    });
    shared.store(Arc::new(without_authorities.unwrap()));
    // The first one ends, and those behind it find nothing to check their servers by.
    peers.retain(|peer| !has_heard(peer));
    client.until("all are over", |client| {
        client.seen.closed.len() == links.len()
    });
}

/// Whether something has come.
fn has_heard(peer: &TcpStream) -> bool {
    peer.set_nonblocking(true).unwrap();
    peer.peek(&mut [0]).is_ok()
}

#[test]
fn new_credentials_are_for_new_links_and_old_links_stay() {
    let authority = Authority::new();
    let mut server = require(&authority, "grpcxx://c/ps/0");
    let shared = authority.task("grpcxx://c/worker/0");
    let mut client = Side::new(options(TlsMode::Require), shared.clone());
    let old = client.transport.connect(server.address).unwrap();
    client.until("the first dial succeeds", |client| {
        server.turn();
        client.seen.connected.contains(&old)
    });
    let renewed = authority.sign_task("grpcxx://c/worker/7");
    shared.store(Arc::new(authority.credentials(&renewed)));
    let new = client.transport.connect(server.address).unwrap();
    client.until("the second dial succeeds", |client| {
        server.turn();
        client.seen.connected.contains(&new)
    });
    for (link, text) in [(old, b"old"), (new, b"new")] {
        client
            .transport
            .send(link, support::side::message(text))
            .unwrap();
    }
    client.until("both are heard", |_| {
        server.turn();
        server.seen.messages.len() == 2
    });
    for (link, text) in &server.seen.messages {
        let name = server.transport.peer_name(*link).unwrap();
        assert_eq!(name.index, if text == b"old" { 0 } else { 7 });
    }
}

#[test]
fn texts_that_are_no_credentials_say_why() {
    let authority = Authority::new();
    let (pem, other) = (
        authority.sign_task("grpcxx://c/ps/0"),
        authority.sign(vec![]),
    );
    let fault = |certificates: &str, key: &str, authorities: &str| {
        Credentials::from_pem(PemTexts {
            certificates: certificates.as_bytes(),
            key: key.as_bytes(),
            authorities: Some(authorities.as_bytes()),
            is_mutual: true,
        })
        .map(drop)
        .unwrap_err()
        .to_string()
    };
    let ca = &authority.certificate;
    assert!(fault("", &pem.key, ca).contains("the certificate: no `BEGIN"));
    assert!(fault(&pem.certificate, "x", ca).contains("the key: "));
    assert!(fault(&pem.certificate, &pem.key, "").contains("the authorities: no `BEGIN"));
    let unfit = fault(&pem.certificate, &other.key, ca);
    assert!(
        unfit.contains("a server of certificate and key: "),
        "{unfit}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_bytes_instead_of_a_handshake_end_the_link_and_nothing_else(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
    ) {
        let authority = Authority::new();
        let mut side = require(&authority, "grpcxx://c/ps/0");
        let mut stream = side.connection();
        // The side may leave before all is written.
        let _ = stream.write_all(&[&[22, 3, 1, 0, 200][..], &bytes].concat());
        drop(stream);
        prop_assert!(matches!(side.end(), CloseReason::Failed(_)));
        prop_assert!(side.seen.messages.is_empty());
    }
}
