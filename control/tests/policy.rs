//! Callers of the gRPC endpoint that ask for what they have no right to.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use grpcxx_control::services::worker_service_client::WorkerServiceClient;
use grpcxx_control::{ClientError, Control, ControlClient, Health};
use grpcxx_rpc::proto::{
    CleanupAllRequest, CreateWorkerSessionRequest, GetStatusRequest, RecvTensorRequest,
};
use grpcxx_rpc::{Code, Token};
use grpcxx_runtime::policy::{Authority, Policy, Secret, TokenSource};
use tonic::Request;

use crate::support::{Fake, connect, loopback};

const KEY: &str = "the key that two tasks share";
const CLEANUP_ALL: &str = "/tensorflow.WorkerService/CleanupAll";

fn authority(key: &str) -> Arc<Authority> {
    let policy = Policy {
        token: Some(TokenSource::Key(Secret::new(key))),
        ..Policy::default()
    };
    Arc::new(Authority::new(&policy).unwrap())
}

/// An endpoint whose callers have to prove the token.
fn closed(fake: &Arc<Fake>) -> (Control, Arc<Authority>) {
    let authority = authority(KEY);
    let options = loopback().guarded_by(authority.clone());
    (Control::start(options, fake.clone()).unwrap(), authority)
}

async fn code_of<T: std::fmt::Debug>(
    call: impl Future<Output = Result<T, ClientError>>,
) -> (Code, String) {
    match call.await.unwrap_err() {
        ClientError::Call { status, .. } => (status.code, status.message.into_owned()),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_caller_without_the_token_can_reset_end_and_take_nothing() {
    let fake = Fake::new();
    let (control, authority) = closed(&fake);
    let client: ControlClient = connect(&control).await;
    let (code, text) = code_of(client.reset(vec![])).await;
    assert_eq!(code, Code::PermissionDenied);
    for wanted in ["admin", "GRPCXX_TOKEN_FILE", "GRPCXX_ADMIN"] {
        assert!(text.contains(wanted), "{text}");
    }
    assert_eq!(
        code_of(client.cleanup_graph(3)).await.0,
        Code::PermissionDenied
    );
    assert_eq!(
        code_of(client.recv_tensor(3, "key")).await.0,
        Code::PermissionDenied
    );
    assert_eq!(
        code_of(client.list_devices()).await.0,
        Code::PermissionDenied
    );
    assert_eq!(code_of(client.inspect()).await.0, Code::PermissionDenied);
    assert!(fake.cleaned_steps.lock().unwrap().is_empty());
    assert!(fake.containers.lock().unwrap().is_empty());
    assert_eq!(authority.counters().requests_forbidden, 5);
    // Who watches over tasks knows no token.
    assert_eq!(client.health().await.unwrap(), Health::Serving);
    assert!(client.get_status().await.is_ok());
}

#[tokio::test]
async fn a_stranger_to_an_open_cluster_ends_no_step() {
    let fake = Fake::new();
    let policy = Policy {
        admin: Some("none".parse().unwrap()),
        ..Policy::default()
    };
    let authority = Arc::new(Authority::new(&policy).unwrap());
    let options = loopback().guarded_by(authority.clone());
    let control = Control::start(options, fake.clone()).unwrap();
    let client = connect(&control).await;
    let (code, text) = code_of(client.cleanup_graph(3)).await;
    assert_eq!(code, Code::PermissionDenied);
    assert!(
        text.contains("step 3 was not made from this address"),
        "{text}"
    );
    assert!(fake.cleaned_steps.lock().unwrap().is_empty());
    assert_eq!(authority.counters().requests_forbidden, 1);
}

#[tokio::test]
async fn every_method_that_changes_something_needs_a_right() {
    let fake = Fake::new();
    let (control, _authority) = closed(&fake);
    let address = format!("http://{}", control.local_addr());
    let mut worker = WorkerServiceClient::connect(address).await.unwrap();
    let denied = [
        worker
            .cleanup_all(CleanupAllRequest::default())
            .await
            .unwrap_err(),
        (worker
            .create_worker_session(CreateWorkerSessionRequest::default())
            .await)
            .unwrap_err(),
        worker
            .recv_tensor(RecvTensorRequest::default())
            .await
            .unwrap_err(),
    ];
    for status in denied {
        assert_eq!(status.code(), tonic::Code::PermissionDenied, "{status}");
    }
    assert!(worker.get_status(GetStatusRequest {}).await.is_ok());
}

#[tokio::test]
async fn a_caller_with_the_token_may_do_all() {
    let fake = Fake::new();
    let (control, _authority) = closed(&fake);
    let client = connect(&control).await.proving(authority(KEY));
    client.reset(vec!["a".to_owned()]).await.unwrap();
    client.cleanup_graph(3).await.unwrap();
    assert_eq!(client.inspect().await.unwrap().shards, 2);
    assert_eq!(*fake.containers.lock().unwrap(), ["a"]);
    assert_eq!(*fake.cleaned_steps.lock().unwrap(), [3]);
}

#[tokio::test]
async fn a_proof_of_another_token_method_or_time_is_refused() {
    let fake = Fake::new();
    let (control, authority_of_task) = closed(&fake);
    let other = connect(&control)
        .await
        .proving(authority("another key of enough bytes"));
    assert_eq!(code_of(other.reset(vec![])).await.0, Code::Unauthenticated);

    let token = Token::new(KEY.as_bytes()).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let recorded = token.prove_call(CLEANUP_ALL, now - Duration::from_secs(100));
    let of_another_method = token.prove_call("/tensorflow.MasterService/Reset", now);
    let address = format!("http://{}", control.local_addr());
    let mut worker = WorkerServiceClient::connect(address).await.unwrap();
    for proof in [
        recorded,
        of_another_method,
        KEY.to_owned(),
        format!("Bearer {KEY}"),
    ] {
        let mut request = Request::new(CleanupAllRequest::default());
        let value = proof.parse().unwrap();
        request.metadata_mut().insert("authorization", value);
        let status = worker.cleanup_all(request).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unauthenticated, "{status}");
    }
    assert_eq!(authority_of_task.counters().proofs_failed, 5);
    assert!(fake.containers.lock().unwrap().is_empty());
}

/// Whether the port answers a request for a page, or closes at once.
fn answers(address: SocketAddr) -> bool {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    // A port that is closed to us may have closed already.
    let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
    match stream.read(&mut [0; 64]) {
        Ok(count) => count > 0,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
            false
        }
    }
}

#[test]
fn an_address_that_is_not_allowed_reaches_neither_grpc_nor_metrics() {
    for (allow, is_allowed) in [("10.0.0.0/8", false), ("127.0.0.0/8", true)] {
        let policy = Policy {
            allow: Some(allow.parse().unwrap()),
            ..Policy::default()
        };
        let authority = Arc::new(Authority::new(&policy).unwrap());
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let options = loopback().metrics_on(any).guarded_by(authority.clone());
        let control = Control::start(options, Fake::new()).unwrap();
        // The gRPC port tells who speaks HTTP/1 that it does not, if it answers at all.
        assert_eq!(answers(control.local_addr()), is_allowed);
        assert_eq!(answers(control.metrics_addr().unwrap()), is_allowed);
        let refused = authority.counters().connections_refused;
        assert_eq!(refused, if is_allowed { 0 } else { 2 });
    }
}

/// Calls Reset with curl, as a gRPC client that sends its head and its message apart. Returns
/// whether curl saw a whole answer, and the answer with its head.
fn curl(control: &Control, authorization: Option<&str>) -> (Option<i32>, String) {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--include", "--max-time", "20"])
        .args(["--http2-prior-knowledge", "--header", "te: trailers"])
        .args(["--header", "content-type: application/grpc"]);
    if let Some(text) = authorization {
        curl.arg("--header").arg(format!("authorization: {text}"));
    }
    let url = format!(
        "http://{}/tensorflow.MasterService/Reset",
        control.local_addr()
    );
    let mut child = curl
        .args(["--data-binary", "@-", &url])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("curl is installed");
    // 40,000 bytes of a message: some are still on their way when the head has come.
    let message = [&[0, 0, 0, 0x9c, 0x40][..], &[0; 40_000]].concat();
    child.stdin.take().unwrap().write_all(&message).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code(), text)
}

#[test]
fn who_is_refused_sees_a_status_with_what_to_set_and_no_broken_stream() {
    let fake = Fake::new();
    let (control, _authority) = closed(&fake);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let wrong = Token::new(b"another key of enough bytes").unwrap();
    let wrong = wrong.prove_call("/tensorflow.MasterService/Reset", now);
    for _ in 0..5 {
        for (authorization, code) in [
            (None, Code::PermissionDenied),
            (Some("GRPCXX"), Code::Unauthenticated),
            (Some("Bearer x"), Code::Unauthenticated),
            (Some("\u{e4}\u{f6}"), Code::Unauthenticated),
            (Some(wrong.as_str()), Code::Unauthenticated),
        ] {
            let (exit, text) = curl(&control, authorization);
            assert_eq!(exit, Some(0), "{authorization:?}: {text}");
            let status = format!("grpc-status: {}", code as i32);
            assert!(text.contains(&status), "{authorization:?}: {text}");
            assert!(text.contains("GRPCXX_TOKEN_FILE"), "{text}");
        }
    }
}
