//! The metrics page over real sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use grpcxx_control::Control;

use crate::support::{Fake, connect, loopback};

fn start(fake: Fake) -> Control {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    Control::start(loopback().metrics_on(any), Arc::new(fake)).unwrap()
}

fn fetch(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[tokio::test]
async fn the_page_shows_engine_and_endpoint() {
    let control = start(Fake::default());
    let client = connect(&control).await;
    client.get_status().await.unwrap();
    let _ = client.recv_tensor(1, "missing").await.unwrap_err();
    let address = control.metrics_addr().unwrap();
    let text = tokio::task::spawn_blocking(move || fetch(address, "GET /metrics"))
        .await
        .unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    for part in [
        "text/plain; version=0.0.4",
        "\ngrpcxx_calls_total 5\n",
        "grpcxx_control_engine_answers 1",
        r#"code="OK",method="GetStatus",service="tensorflow.WorkerService"} 1"#,
        r#"code="NOT_FOUND",method="RecvTensor",service="tensorflow.WorkerService"} 1"#,
        "grpcxx_control_connections 1",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(!text.contains("# EOF"), "{text}");
}

#[test]
fn a_silent_engine_leaves_the_rest_of_the_page() {
    let control = start(Fake {
        engine_answers: false,
        ..Fake::default()
    });
    let text = fetch(control.metrics_addr().unwrap(), "GET /metrics");
    assert!(text.contains("grpcxx_control_engine_answers 0"), "{text}");
    assert!(text.contains("grpcxx_control_connections 0"), "{text}");
}

#[test]
fn health_and_wrong_requests_are_answered() {
    let control = start(Fake::default());
    let address = control.metrics_addr().unwrap();
    assert!(fetch(address, "GET /healthz").ends_with("serving\n"));
    control.alarm().raise();
    let text = fetch(address, "GET /healthz");
    assert!(
        text.starts_with("HTTP/1.1 503") && text.ends_with("failed\n"),
        "{text}"
    );
    assert!(fetch(address, "HEAD /metrics").starts_with("HTTP/1.1 200"));
    assert!(fetch(address, "GET /other").starts_with("HTTP/1.1 404"));
    assert!(fetch(address, "POST /metrics").starts_with("HTTP/1.1 405"));
    assert!(fetch(address, "\u{1}").starts_with("HTTP/1.1 400"));
}

#[test]
fn a_task_that_hangs_is_not_alive() {
    for (engine_answers, code, words) in [(true, 200, "alive\n"), (false, 503, "shard 3 hangs\n")] {
        let control = start(Fake {
            engine_answers,
            ..Fake::default()
        });
        let text = fetch(control.metrics_addr().unwrap(), "GET /livez");
        assert!(text.starts_with(&format!("HTTP/1.1 {code}")), "{text}");
        assert!(text.ends_with(words), "{text}");
    }
}

#[test]
fn the_page_of_graphs_may_load_nothing_but_the_numbers() {
    let control = start(Fake::default());
    let address = control.metrics_addr().unwrap();
    let answer = fetch(address, "GET /");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let nonce = head.split("script-src 'nonce-").nth(1).unwrap();
    let nonce = &nonce[..nonce.find('\'').unwrap()];
    assert!(head.contains("default-src 'none'; script-src 'nonce-"));
    assert_eq!(body.matches(&format!("nonce=\"{nonce}\"")).count(), 2);
    assert!(
        !fetch(address, "GET /").contains(nonce),
        "it is new each time"
    );
    for wrong in [
        "@NONCE@",
        "src=",
        "style=\"",
        "innerHTML",
        "eval(",
        "onclick",
    ] {
        assert!(!body.contains(wrong), "{wrong}");
    }
    // Its only address is the name space of SVG.
    let elsewhere =
        body.matches("://").count() - body.matches("http://www.w3.org/2000/svg").count();
    assert_eq!(elsewhere, 0);
}
