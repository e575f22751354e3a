//! Bytes on the ports that no client sends, and clients that hold what they can get.

mod support;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use grpcxx_control::services::master_service_client::MasterServiceClient;
use grpcxx_control::{ClientOptions, Control, ControlClient, ControlLimits};
use grpcxx_rpc::proto::{CreateSessionRequest, ListDevicesRequest};
use support::{Fake, channel, connect, loopback, start};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Sends `bytes` and waits until the endpoint closes the connection.
async fn closes_after(address: SocketAddr, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The endpoint may close before all is written.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut answer));
    let _ = ended.await.expect("the connection is closed");
}

#[tokio::test]
async fn bytes_that_are_no_http2_close_their_connection_only() {
    let control = start(&Fake::new());
    let client = connect(&control).await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let after = |frame: &[u8]| [&preface[..], &settings, frame].concat();
    let star_head = [b"AAAAAAAA".as_slice(), &[0; 24]].concat();
    for bytes in [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        star_head,
        vec![0xff; 4096],
        // DATA on stream 0, an oversized SETTINGS, HEADERS with a broken HPACK block.
        after(&[0, 0, 1, 0, 0, 0, 0, 0, 0, 0]),
        after(&[0, 0, 5, 4, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5]),
        after(&[0, 0, 2, 1, 5, 0, 0, 0, 1, 0xff, 0xff]),
        after(&[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]),
    ] {
        closes_after(control.local_addr(), &bytes).await;
        client.get_status().await.unwrap();
    }
}

#[tokio::test]
async fn a_star_port_is_told_apart() {
    // Anything that speaks no HTTP/2 stands for a star port.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move { stream.write_all(&[0x42; 32]).await });
        }
    });
    let options = ClientOptions {
        call_timeout: Duration::from_secs(10),
        ..Default::default()
    };
    let error = match ControlClient::connect(&address, options).await {
        Ok(client) => client.get_status().await.unwrap_err(),
        Err(error) => error,
    };
    let text = error.to_string();
    assert!(
        text.contains("cluster spec") || text.contains("check that"),
        "{text}"
    );
    assert!(text.contains(&address), "{text}");
}

/// What a client sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const CLEANUP_ALL: &str = "/tensorflow.WorkerService/CleanupAll";
const WATCH_HEALTH: &str = "/grpc.health.v1.Health/Watch";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, high, middle, low] = (payload.len() as u32).to_be_bytes();
    let mut bytes = vec![high, middle, low, kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A request's head, without indexing or compression of headers.
fn head(stream: u32, path: &str) -> Vec<u8> {
    let mut headers = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "x"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        headers.push(0);
        for text in [name, value] {
            headers.push(text.len() as u8);
            headers.extend_from_slice(text.as_bytes());
        }
    }
    frame(HEADERS, END_HEADERS, stream, &headers)
}

/// A request's head and the first five bytes of its message.
fn unfinished_call(stream: u32, path: &str, announced_bytes: u32) -> Vec<u8> {
    let mut prefix = vec![0];
    prefix.extend(announced_bytes.to_be_bytes());
    [head(stream, path), frame(DATA, 0, stream, &prefix)].concat()
}

/// A whole request with an empty message.
fn whole_call(stream: u32, path: &str) -> Vec<u8> {
    [head(stream, path), frame(DATA, END_STREAM, stream, &[0; 5])].concat()
}

async fn dial_and_send(control: &Control, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(control.local_addr()).await.unwrap();
    stream.write_all(PREFACE).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

/// Reads frames until one with headers has come; the stream of that.
async fn answered_stream(connection: &mut TcpStream) -> u32 {
    loop {
        let mut head = [0; 9];
        connection.read_exact(&mut head).await.unwrap();
        let [a, b, c, kind, _, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        connection.read_exact(&mut payload).await.unwrap();
        if kind == HEADERS {
            return u32::from_be_bytes(stream);
        }
    }
}

fn start_with(limits: impl FnOnce(&mut ControlLimits)) -> Control {
    let mut given = ControlLimits::default();
    limits(&mut given);
    Control::start(loopback().with_limits(given), Fake::new()).unwrap()
}

/// Numbers that a client gives to `count` streams.
fn streams(count: u32) -> impl Iterator<Item = u32> {
    (0..count).map(|index| 2 * index + 1)
}

#[tokio::test]
async fn announced_bytes_take_no_room_from_others() {
    let control = start(&Fake::new());
    let client = connect(&control).await;
    for announced_bytes in [i32::MAX as u32, u32::MAX] {
        let call = unfinished_call(1, CLEANUP_ALL, announced_bytes);
        let mut stream = dial_and_send(&control, &call).await;
        assert_eq!(answered_stream(&mut stream).await, 1, "refused at once");
    }
    let mut unfinished = Vec::new();
    for _ in 0..100 {
        let call = unfinished_call(1, CLEANUP_ALL, 60 << 20);
        unfinished.push(dial_and_send(&control, &call).await);
    }
    client.get_status().await.unwrap();
    // Of the memory of this process, which is on one line with its sizes in KiB.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let resident_kib: u64 = resident
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    assert!(resident_kib < 1 << 20, "{resident_kib} KiB");
}

#[tokio::test]
async fn half_requests_keep_nobody_from_being_served() {
    let control = start(&Fake::new());
    let client = connect(&control).await;
    let mut half = Vec::new();
    for _ in 0..3 {
        let calls: Vec<u8> = streams(600)
            .flat_map(|stream| unfinished_call(stream, CLEANUP_ALL, 9))
            .collect();
        half.push(dial_and_send(&control, &calls).await);
        client.get_status().await.unwrap();
    }
    // The oldest were given up for the newest.
    assert_eq!(answered_stream(&mut half[0]).await, 1);
    client.get_status().await.unwrap();
}

#[tokio::test]
async fn a_request_that_does_not_come_in_time_is_given_up() {
    let control = start_with(|limits| limits.request_time = Duration::from_millis(300));
    let begun = Instant::now();
    let call = unfinished_call(1, CLEANUP_ALL, 9);
    let mut stream = dial_and_send(&control, &call).await;
    assert_eq!(answered_stream(&mut stream).await, 1);
    assert!(begun.elapsed() >= Duration::from_millis(300));
}

#[tokio::test]
async fn who_watches_the_health_keeps_nobody_from_asking_for_it() {
    let control = start(&Fake::new());
    let mut watching = Vec::new();
    for _ in 0..2 {
        let calls: Vec<u8> = streams(1000)
            .flat_map(|stream| whole_call(stream, WATCH_HEALTH))
            .collect();
        watching.push(dial_and_send(&control, &calls).await);
    }
    let client = connect(&control).await;
    client.health().await.unwrap();
}

#[tokio::test]
async fn idle_connections_keep_nobody_out() {
    let control = start_with(|limits| limits.connections = 64);
    let client = connect(&control).await;
    let mut idle = Vec::new();
    for round in 0..3 {
        for _ in 0..40 {
            idle.push(dial_and_send(&control, &[]).await);
        }
        // A client whose connection was closed has another.
        let answer = match client.get_status().await {
            Err(_) => connect(&control).await.get_status().await,
            answer => answer,
        };
        assert!(answer.is_ok(), "round {round}: {answer:?}");
    }
}

#[tokio::test]
async fn a_connection_that_carries_a_call_does_not_give_way() {
    let fake = Fake::new();
    let mut limits = ControlLimits::default();
    limits.connections = 8;
    let control = Control::start(loopback().with_limits(limits), fake.clone()).unwrap();
    let client = connect(&control).await;
    let waits = tokio::spawn(async move { client.recv_tensor(1, "gate;a").await });
    fake.until_waiting(1).await;
    let mut idle = Vec::new();
    for _ in 0..40 {
        idle.push(dial_and_send(&control, &[]).await);
    }
    connect(&control).await.get_status().await.unwrap();
    fake.gate.send_replace(true);
    let answer = waits.await.unwrap().unwrap_err().to_string();
    assert!(answer.contains("no tensor"), "{answer}");
}

#[tokio::test]
async fn sessions_that_nobody_closes_keep_nobody_out() {
    let control = start_with(|limits| limits.sessions = 32);
    let mut master = MasterServiceClient::new(channel(&control).await);
    for _ in 0..100 {
        let created = master.create_session(CreateSessionRequest::default());
        let session_handle = created.await.unwrap().into_inner().session_handle;
        let listed = master.list_devices(ListDevicesRequest { session_handle });
        listed.await.unwrap();
    }
}

#[tokio::test]
async fn silent_sockets_keep_nobody_from_the_health_page() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let control = Control::start(loopback().metrics_on(any), Fake::new()).unwrap();
    let address = control.metrics_addr().unwrap();
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    let patience = Duration::from_secs(5);
    tokio::time::timeout(patience, read).await.unwrap().unwrap();
    assert!(answer.ends_with("serving\n"), "{answer}");
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
