//! Engines whose connections are TLS, by settings alone.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use grpcxx_rpc::{Code, Reason, Request, Response, Status};
use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::{Engine, Peer};

use crate::authority::Authority;
use crate::support::{floats, key, receive, state};

fn peer_of(server: &Engine, worker: &Engine) -> Peer {
    let address = server.local_addr().unwrap().to_string();
    worker.client().peer(&address).unwrap()
}

/// Receives a tensor that the server has.
fn exchange(server: &Engine, worker: &Engine, index: usize) {
    let peer = peer_of(server, worker);
    let key = key(server, index);
    let tensor = floats(50_000, 3.0);
    server.send(1, key.clone(), tensor.clone()).unwrap();
    let answer = receive(worker, &peer, 1, key).wait();
    let Response::Tensors(tensors) = answer.unwrap() else {
        panic!("a tensor was asked for");
    };
    assert_eq!(tensors[0], tensor);
}

const REQUIRE: (&str, &str) = ("GRPCXX_TLS", "require");
const NO_SHM: (&str, &str) = ("GRPCXX_SHM", "off");

#[test]
fn tensors_travel_over_tls() {
    let authority = Authority::new();
    let [server, worker] = ["ps", "worker"].map(|job| authority.start(job, &[REQUIRE, NO_SHM]));
    for index in 0..10 {
        exchange(&server, &worker, index);
    }
    assert_eq!(
        state(&worker, &peer_of(&server, &worker)).medium,
        grpcxx_runtime::LinkMedium::Tcp
    );
    let report = server.start_report().to_string();
    assert!(report.contains("tls=require (grpcxx://c/ps/0)"), "{report}");
    assert!(report.contains("rdma=off (TLS is on"), "{report}");
    for engine in [&server, &worker] {
        assert!(engine.tls_counters().handshakes > 0, "{:?}", engine.task());
    }
}

#[test]
fn connections_that_are_tls_go_on_in_shared_memory() {
    let authority = Authority::new();
    let [server, worker] = ["ps", "worker"].map(|job| authority.start(job, &[REQUIRE]));
    let peer = peer_of(&server, &worker);
    let end = Instant::now() + Duration::from_secs(20);
    let mut index = 0;
    while state(&worker, &peer).medium != grpcxx_runtime::LinkMedium::SharedMemory {
        assert!(Instant::now() < end, "{:?}", state(&worker, &peer).stays);
        exchange(&server, &worker, index);
        index += 1;
    }
    exchange(&server, &worker, index);
}

#[test]
fn strangers_learn_nothing_where_tls_is_required() {
    let authority = Authority::new();
    let server = authority.start("ps", &[REQUIRE]);
    let address = server.local_addr().unwrap();
    // A CleanupAll, as star writes it.
    let mut request = [0; 32];
    request[..4].copy_from_slice(b"AAAA");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&request).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(answer, b"");
    assert_eq!(server.counters().requests, 0);
    assert_eq!(server.tls_counters().plain_refused, 1);
    // A dialler without TLS fails, and one with TLS towards a server without does not fall back.
    let plain = Engine::start(authority.options("ps", &[])).unwrap();
    for (from, to) in [(&plain, &server), (&server, &plain)] {
        let request = Request::RecvTensor {
            step_id: 1,
            key: key(to, 0),
        };
        let client = from.client();
        let call = client.call(&peer_of(to, from), request, Some(Duration::from_secs(1)));
        call.wait().unwrap_err();
    }
}

#[test]
fn a_server_that_proves_to_be_another_task_is_not_called() {
    let authority = Authority::new();
    let [server, worker] = ["ps", "worker"].map(|job| authority.start(job, &[REQUIRE, NO_SHM]));
    let address = server.local_addr().unwrap().to_string();
    let other = Engine::start(authority.options("worker", &[REQUIRE, NO_SHM])).unwrap();
    other
        .client()
        .expect_task(&address, TaskId::new("ps", 1))
        .unwrap();
    let request = Request::RecvTensor {
        step_id: 1,
        key: key(&server, 0),
    };
    let peer = peer_of(&server, &other);
    let limit = Some(Duration::from_secs(20));
    let refused = other.client().call(&peer, request, limit).wait();
    let status = refused.unwrap_err();
    assert_eq!(status.code, Code::Unauthenticated, "{status:?}");
    assert!(status.message.contains("ps/1 was called"), "{status:?}");
    assert_eq!(server.counters().requests, 0);

    worker
        .client()
        .expect_task(&address, TaskId::new("ps", 0))
        .unwrap();
    exchange(&server, &worker, 0);

    // Another task may take a port that was free, and be expected there then.
    other
        .client()
        .expect_task(&address, TaskId::new("ps", 0))
        .unwrap();
    exchange(&server, &other, 0);
}

#[test]
fn the_server_that_is_called_has_the_name_of_its_task_in_its_certificate() {
    let authority = Authority::new();
    let worker = authority.start("worker", &[REQUIRE, NO_SHM]);
    // The task `ps 0`, with the certificate of another task of the cluster.
    authority.sign("ps", "grpcxx://c/worker/7");
    let server = Engine::start(authority.options("ps", &[REQUIRE, NO_SHM])).unwrap();
    let address = server.local_addr().unwrap().to_string();
    worker
        .client()
        .expect_task(&address, TaskId::new("ps", 0))
        .unwrap();
    let status = refusal(&worker, &server);
    assert_eq!(server.counters().requests, 0);
    for text in [
        "its certificate is that of grpcxx://c/worker/7",
        "ps/0 was called",
        "GRPCXX_TLS_CERT",
        "cluster spec",
    ] {
        assert!(status.message.contains(text), "{text}: {status:?}");
    }

    let right = authority.start("ps", &[REQUIRE, NO_SHM]);
    let address = right.local_addr().unwrap().to_string();
    worker
        .client()
        .expect_task(&address, TaskId::new("ps", 0))
        .unwrap();
    exchange(&right, &worker, 0);
}

#[test]
fn a_client_that_claims_to_be_another_task_is_refused() {
    let authority = Authority::new();
    let server = authority.start("ps", &[REQUIRE]);
    // The task `worker 0`, with the certificate of another task of the cluster.
    authority.sign("worker", "grpcxx://c/worker/7");
    let other = Engine::start(authority.options("worker", &[REQUIRE])).unwrap();
    for _ in 0..2 {
        let status = refusal(&other, &server);
        for text in [
            "says that it is worker/0",
            "its certificate is that of grpcxx://c/worker/7",
            "GRPCXX_TLS_CERT",
        ] {
            assert!(status.message.contains(text), "{text}: {status:?}");
        }
    }
    assert!(server.authority().counters().proofs_failed >= 2);

    let worker = authority.start("worker", &[REQUIRE]);
    exchange(&server, &worker, 0);
    // A certificate that names no task, as that of an operator, is for each of them.
    authority.sign("worker", "https://operator.example");
    let operator = Engine::start(authority.options("worker", &[REQUIRE])).unwrap();
    exchange(&server, &operator, 1);
}

/// How a server and a client that do not believe each other end a call.
fn refusal(client: &Engine, server: &Engine) -> Status {
    let request = Request::RecvTensor {
        step_id: 1,
        key: key(server, 0),
    };
    let peer = peer_of(server, client);
    let limit = Some(Duration::from_secs(20));
    let refused = client.client().call(&peer, request, limit).wait();
    let status = refused.unwrap_err();
    assert_eq!(status.code, Code::Unauthenticated, "{status:?}");
    assert_eq!(status.reason, Reason::Unproven, "{status:?}");
    status
}

#[test]
fn a_certificate_of_another_authority_ends_calls_at_once() {
    let [ours, theirs] = [Authority::new(), Authority::new()];
    let server = theirs.start("ps", &[REQUIRE, NO_SHM]);
    let ca = |authority: &Authority| authority.folder.path().join("ca.pem").display().to_string();
    // One that does not accept the server, and one that the server does not accept.
    for known in [ca(&ours), ca(&theirs)] {
        let worker = ours.start("worker", &[REQUIRE, NO_SHM, ("GRPCXX_TLS_CA", &known)]);
        let peer = peer_of(&server, &worker);
        let begin = Instant::now();
        for step_id in 1..=2 {
            let request = Request::RecvTensor {
                step_id,
                key: key(&server, 0),
            };
            let limit = Some(Duration::from_secs(60));
            let refused = worker.client().call(&peer, request, limit).wait();
            let status = refused.unwrap_err();
            assert_eq!(status.code, Code::Unauthenticated, "{status:?}");
            assert_eq!(status.reason, Reason::Unproven, "{status:?}");
            assert!(status.message.contains("certificate"), "{status:?}");
        }
        assert!(begin.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(server.counters().requests, 0);
}

#[test]
fn tasks_change_over_to_tls_one_by_one() {
    let authority = Authority::new();
    for (server, worker) in [
        ("accept", "off"),
        ("accept", "accept"),
        ("accept", "dial"),
        ("dial", "accept"),
        ("dial", "require"),
        ("require", "dial"),
    ] {
        let server = authority.start("ps", &[("GRPCXX_TLS", server), NO_SHM]);
        let worker = authority.start("worker", &[("GRPCXX_TLS", worker), NO_SHM]);
        exchange(&server, &worker, 0);
    }
}

#[test]
fn what_tls_needs_is_told_by_the_names_of_its_variables() {
    let authority = Authority::new();
    authority.sign("ps", "grpcxx://c/ps/0");
    let fault = |more: &[(&str, &str)]| {
        let options = authority.options("ps", &[&[REQUIRE], more].concat());
        Engine::start(options).err().map(|error| error.to_string())
    };
    let ca = authority.folder.path().join("ca.pem").display().to_string();
    let missing = fault(&[("GRPCXX_TLS_CERT", "")]).unwrap();
    assert!(
        missing.contains("GRPCXX_TLS=require needs GRPCXX_TLS_CERT"),
        "{missing}"
    );
    let missing = fault(&[("GRPCXX_TLS_KEY", "/nowhere/key")]).unwrap();
    assert!(
        missing.contains("/nowhere/key cannot be read: No such file"),
        "{missing}"
    );
    let wrong = fault(&[("GRPCXX_TLS_KEY", &ca)]).unwrap();
    assert!(wrong.contains("the key: "), "{wrong}");
    assert_eq!(fault(&[]), None);
    assert!(Path::new(&ca).exists());
}
