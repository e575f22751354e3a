//! Bytes on the port that no client sends.

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use grpcxx_control::{ClientOptions, ControlClient};
use support::{Fake, connect, start};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Sends `bytes` and waits until the endpoint closes the connection.
async fn closes_after(address: SocketAddr, bytes: &[u8]) {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
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

/// A request's head and the first five bytes of its message, without indexing or compression of headers.
fn unfinished_call(stream: u8, path: &str, announced_bytes: u32) -> Vec<u8> {
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
    let [high, middle, low] = [0, headers.len() >> 8, headers.len()].map(|part| part as u8);
    const HEADERS: u8 = 1;
    const END_HEADERS: u8 = 4;
    let mut bytes = vec![high, middle, low, HEADERS, END_HEADERS, 0, 0, 0, stream];
    bytes.extend(headers);
    bytes.extend([0, 0, 5, 0, 0, 0, 0, 0, stream, 0]);
    bytes.extend(announced_bytes.to_be_bytes());
    bytes
}

#[tokio::test]
async fn announced_lengths_are_checked_before_memory_is_taken() {
    let control = start(&Fake::new());
    let client = connect(&control).await;
    let greatest = i32::MAX as u32;
    for (second, expected) in [(greatest, 1), (u32::MAX, 1), (0, 0)] {
        let mut stream = tokio::net::TcpStream::connect(control.local_addr())
            .await
            .unwrap();
        let path = "/tensorflow.WorkerService/CleanupAll";
        let calls = [
            &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"[..],
            &unfinished_call(1, path, greatest),
            &unfinished_call(3, path, second),
        ]
        .concat();
        stream.write_all(&calls).await.unwrap();
        let answered = tokio::time::timeout(
            Duration::from_millis(if expected == 0 { 300 } else { 20_000 }),
            answered_streams(&mut stream, 3),
        );
        // The answer to the second call comes first, or none while it is still read.
        assert_eq!(usize::from(answered.await.is_ok()), expected, "{second}");
        drop(stream);
        client.get_status().await.unwrap();
    }
}

/// Reads frames until one with headers for this stream has come.
async fn answered_streams(connection: &mut tokio::net::TcpStream, stream: u8) {
    loop {
        let mut head = [0; 9];
        connection.read_exact(&mut head).await.unwrap();
        let [a, b, c, kind, _, .., id] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        connection.read_exact(&mut payload).await.unwrap();
        if kind == 1 {
            assert_eq!(id, stream, "only the second call has an answer");
            return;
        }
    }
}
