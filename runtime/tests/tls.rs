//! Engines whose connections are TLS, by settings alone.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use grpcxx_rpc::{Request, Response};
use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::config::Config;
use grpcxx_runtime::{Engine, EngineOptions, Peer};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
};
use support::{floats, key, receive, state};
use tempfile::TempDir;

/// An authority, and a folder with its certificate and those of tasks.
struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let folder = tempfile::tempdir().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        std::fs::write(folder.path().join("ca.pem"), certificate).unwrap();
        Self {
            folder,
            issuer: Issuer::new(params, key),
        }
    }

    /// Writes a certificate for the task that `name` names, in the files of `job`.
    fn sign(&self, job: &str, name: &str) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(name.try_into().unwrap())];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let file = |what: &str| self.folder.path().join(format!("{job}.{what}"));
        std::fs::write(file("key"), key.serialize_pem()).unwrap();
        std::fs::write(file("pem"), certificate.pem()).unwrap();
    }

    /// The options of a task as its variables say, with more variables.
    fn options(&self, job: &str, more: &[(&str, &str)]) -> EngineOptions {
        let path = |file: String| self.folder.path().join(file).display().to_string();
        let files = [
            ("GRPCXX_TLS_CERT", path(format!("{job}.pem"))),
            ("GRPCXX_TLS_KEY", path(format!("{job}.key"))),
            ("GRPCXX_TLS_CA", path("ca.pem".to_owned())),
        ];
        let lookup = |name: &str| {
            let more = more.iter().find(|(known, _)| *known == name);
            let file = files.iter().find(|(known, _)| *known == name);
            more.map(|(_, value)| (*value).to_owned())
                .or_else(|| file.map(|(_, value)| value.clone()))
        };
        let (config, _) = Config::read(lookup, [""; 0]).unwrap();
        EngineOptions {
            listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
            arena: None,
            ..EngineOptions::from_config(&config, TaskId::new(job, 0), 2)
        }
    }

    fn start(&self, job: &str, more: &[(&str, &str)]) -> Engine {
        self.sign(job, &format!("grpcxx://c/{job}/0"));
        Engine::start(self.options(job, more)).unwrap()
    }
}

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
