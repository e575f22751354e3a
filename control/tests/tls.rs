//! The gRPC port and the metrics page over TLS, with the variables of a task.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use grpcxx_control::limits::HANDSHAKES_MAX;
use grpcxx_control::{ClientError, ClientOptions, Control, ControlClient, ControlOptions, Health};
use grpcxx_rpc::Code;
use grpcxx_runtime::Certificates;
use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::policy::{Authority, Policy, Secret, TokenSource};

use crate::ports::held_address;
use crate::support::tls::Issuers;
use crate::support::{Fake, loopback};

/// An endpoint with these certificates, on which nobody has a right by its address.
fn closed(certificates: &Arc<Certificates>) -> Control {
    let policy = Policy {
        token: Some(TokenSource::Key(Secret::new(
            "a token that nobody here proves",
        ))),
        ..Policy::default()
    };
    let options = loopback()
        .metrics_on(SocketAddr::from(([127, 0, 0, 1], 0)))
        .guarded_by(Arc::new(Authority::new(&policy).unwrap()))
        .secured_by(Some(certificates.clone()));
    Control::start(options, Fake::new()).unwrap()
}

fn of_ps(more: &[(&'static str, &str)]) -> (Issuers, Control) {
    let issuers = Issuers::new();
    issuers.sign("ps", "grpcxx://training/ps/0");
    issuers.sign("worker", "grpcxx://training/worker/3");
    let control = closed(&issuers.certificates("ps", more));
    (issuers, control)
}

async fn dial(
    control: &Control,
    certificates: Option<Arc<Certificates>>,
) -> Result<ControlClient, ClientError> {
    let options = ClientOptions {
        call_timeout: Duration::from_secs(20),
        certificates,
        ..ClientOptions::default()
    };
    ControlClient::connect(&control.local_addr().to_string(), options).await
}

/// Whether a call that needs no right gets through.
async fn reaches(control: &Control, certificates: Option<Arc<Certificates>>) -> bool {
    match dial(control, certificates).await {
        Ok(client) => client.get_status().await.is_ok(),
        Err(_) => false,
    }
}

/// What the port of metrics answers to who speaks without TLS.
fn plain_page(control: &Control, path: &str) -> String {
    let mut stream = TcpStream::connect(control.metrics_addr().unwrap()).unwrap();
    // A port that is closed to us may have closed already.
    let _ = write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

/// Reads a page with curl, which dials as the task of the certificate `file`.
fn curl(issuers: &Issuers, control: &Control, file: Option<&str>, path: &str) -> (bool, String) {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--max-time", "20", "--cacert"])
        .arg(issuers.path("ca.pem"));
    if let Some(file) = file {
        curl.arg("--cert").arg(issuers.path(&format!("{file}.pem")));
        curl.arg("--key").arg(issuers.path(&format!("{file}.key")));
    }
    let page = format!("https://{}{path}", control.metrics_addr().unwrap());
    let output = curl.arg(page).output().expect("curl is installed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.success(), text)
}

#[tokio::test]
async fn a_certificate_gives_the_rights_that_it_gives_on_star() {
    let (issuers, control) = of_ps(&[]);
    let worker = issuers.certificates("worker", &[]);
    let client = dial(&control, Some(worker)).await.unwrap();
    client.reset(vec!["a".to_owned()]).await.unwrap();
    assert_eq!(client.health().await.unwrap(), Health::Serving);
}

#[tokio::test]
async fn without_a_certificate_the_rights_are_those_of_the_address() {
    let (issuers, control) = of_ps(&[("GRPCXX_TLS_MUTUAL", "false")]);
    let client = dial(&control, None).await.unwrap();
    client.get_status().await.unwrap_err();
    let (is_answered, text) = curl(&issuers, &control, None, "/healthz");
    assert_eq!((is_answered, text.as_str()), (true, "serving\n"));

    let (_, control) = of_ps(&[("GRPCXX_TLS", "accept")]);
    let client = dial(&control, None).await.unwrap();
    match client.reset(vec![]).await.unwrap_err() {
        ClientError::Call { status, .. } => assert_eq!(status.code, Code::PermissionDenied),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn plaintext_is_closed_where_tls_is_required_and_counted() {
    let (issuers, control) = of_ps(&[]);
    assert!(!reaches(&control, None).await);
    assert_eq!(plain_page(&control, "/healthz"), "");
    let (is_answered, text) = curl(&issuers, &control, Some("worker"), "/metrics");
    assert!(is_answered);
    let refused = "grpcxx_control_tls_refused_total{why=\"plain\"} ";
    let count = text.lines().find_map(|line| line.strip_prefix(refused));
    assert!(count.unwrap().parse::<u32>().unwrap() >= 2, "{count:?}");
    assert!(text.contains("grpcxx_control_tls_handshakes_total 1"));
}

#[tokio::test]
async fn addresses_that_may_come_without_tls_reach_the_page_of_health() {
    let (_issuers, control) = of_ps(&[("GRPCXX_TLS_PLAIN", "127.0.0.0/8")]);
    assert!(reaches(&control, None).await);
    assert!(plain_page(&control, "/healthz").ends_with("serving\n"));
}

#[tokio::test]
async fn certificates_of_another_authority_or_cluster_are_refused_at_both_ends() {
    let (issuers, control) = of_ps(&[]);
    issuers.sign("other", "grpcxx://other/worker/0");
    let of_another_cluster = issuers.certificates("other", &[]);
    assert!(!reaches(&control, Some(of_another_cluster)).await);

    let strangers = Issuers::new();
    strangers.sign("ps", "grpcxx://training/ps/0");
    // It knows our authority, and cannot prove itself.
    let unproven = strangers.checked_by("ps", &issuers.path("ca.pem"), &[]);
    assert!(!reaches(&control, Some(unproven)).await);
    let distrusting = issuers.checked_by("worker", &strangers.path("ca.pem"), &[]);
    let error = dial(&control, Some(distrusting)).await.unwrap_err();
    assert!(
        error.to_string().contains("invalid peer certificate"),
        "{error}"
    );
    let (is_answered, _) = curl(&issuers, &control, None, "/metrics");
    assert!(!is_answered, "no certificate");
}

#[tokio::test]
async fn an_endpoint_has_the_name_of_the_task_that_is_called_in_its_certificate() {
    let (issuers, control) = of_ps(&[]);
    let worker = issuers.certificates("worker", &[]);
    let called = |task: TaskId| {
        let options = ClientOptions {
            certificates: Some(Arc::clone(&worker)),
            task: Some(task),
            ..ClientOptions::default()
        };
        let address = control.local_addr().to_string();
        async move { ControlClient::connect(&address, options).await }
    };
    let right = called(TaskId::new("ps", 0)).await.unwrap();
    right.get_status().await.unwrap();
    let wrong = called(TaskId::new("ps", 1)).await.unwrap_err();
    assert!(matches!(wrong, ClientError::Unproven { .. }), "{wrong:?}");
    let text = wrong.to_string();
    for part in [
        "its certificate is that of grpcxx://training/ps/0",
        "ps/1 was called",
        "GRPCXX_TLS_CERT",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[tokio::test]
async fn an_endpoint_that_takes_the_place_of_another_task_is_not_asked_either() {
    let issuers = Issuers::new();
    issuers.sign("ps", "grpcxx://training/ps/0");
    issuers.sign("worker", "grpcxx://training/worker/3");
    let address = held_address();
    let at_address = |certificates| {
        let options = ControlOptions::new(address.port()).bind_to(address.ip());
        Control::start(options.secured_by(Some(certificates)), Fake::new()).unwrap()
    };
    let control = at_address(issuers.certificates("ps", &[]));
    let options = ClientOptions {
        certificates: Some(issuers.certificates("worker", &[])),
        task: Some(TaskId::new("ps", 0)),
        ..ClientOptions::default()
    };
    let text = address.to_string();
    let client = ControlClient::connect(&text, options).await.unwrap();
    client.get_status().await.unwrap();
    drop(control);
    issuers.sign("other", "grpcxx://training/ps/1");
    let _other = at_address(issuers.certificates("other", &[]));
    // The first calls may find out that the old connection is gone.
    let mut error = client.get_status().await.unwrap_err();
    for _ in 0..20 {
        if matches!(error, ClientError::Unproven { .. }) {
            break;
        }
        error = client.get_status().await.unwrap_err();
    }
    let text = error.to_string();
    assert!(matches!(error, ClientError::Unproven { .. }), "{text}");
    assert!(text.contains("grpcxx://training/ps/1"), "{text}");
}

#[test]
fn openssl_agrees_on_the_version_and_the_protocol_above() {
    let (issuers, control) = of_ps(&[]);
    let client = Command::new("openssl")
        .args(["s_client", "-alpn", "h2,http/1.1", "-connect"])
        .arg(control.local_addr().to_string())
        .args(["-CAfile", &issuers.path("ca.pem")])
        .args(["-cert", &issuers.path("worker.pem")])
        .args(["-key", &issuers.path("worker.key")])
        .stdin(Stdio::null())
        .output()
        .expect("openssl is installed");
    let text = String::from_utf8_lossy(&client.stdout);
    assert!(text.contains("ALPN protocol: h2"), "{text}");
    assert!(text.contains("TLSv1.3"), "{text}");
    assert!(text.contains("Verification: OK"), "{text}");
}

#[test]
fn a_handshake_has_a_deadline() {
    let (_issuers, control) = of_ps(&[("GRPCXX_TLS_HANDSHAKE_MS", "200")]);
    for begun in [&b""[..], &[0x16, 3, 1, 2, 0, 1]] {
        let mut stream = TcpStream::connect(control.local_addr()).unwrap();
        stream.write_all(begun).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let started = Instant::now();
        assert!(matches!(stream.read(&mut [0; 64]), Ok(0) | Err(_)));
        assert!(started.elapsed() < Duration::from_secs(19));
    }
}

#[tokio::test]
async fn handshakes_that_are_begun_and_left_give_way_to_others() {
    let (issuers, control) = of_ps(&[]);
    let begun: Vec<TcpStream> = (0..2 * HANDSHAKES_MAX)
        .map(|_| {
            let mut stream = TcpStream::connect(control.local_addr()).unwrap();
            stream.write_all(&[0x16, 3, 1]).unwrap();
            stream
        })
        .collect();
    let worker = issuers.certificates("worker", &[]);
    assert!(reaches(&control, Some(worker)).await);
    let (_, text) = curl(&issuers, &control, Some("worker"), "/metrics");
    let gave_way = "grpcxx_control_gave_way_total{what=\"handshake\"} ";
    let count = text.lines().find_map(|line| line.strip_prefix(gave_way));
    // One address has half of the places.
    let least = 2 * HANDSHAKES_MAX - HANDSHAKES_MAX / 2;
    assert!(
        count.unwrap().parse::<usize>().unwrap() >= least,
        "{count:?}"
    );
    drop(begun);
}
