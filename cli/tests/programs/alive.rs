//! `grpcxx-server --check-alive`, as a container asks for the health of its task.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::time::Duration;

use super::ports::held_address;
use super::{SERVER, options, start, text};

fn check(address: SocketAddr) -> Output {
    let mut command = Command::new(SERVER);
    command
        .arg("--check-alive")
        .env("GRPCXX_METRICS_ADDRESS", address.to_string());
    command.output().unwrap()
}

/// A task that takes a request and answers this; `None`: it hangs.
fn task(answer: Option<&'static str>) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 512]);
        match answer {
            Some(answer) => stream.write_all(answer.as_bytes()).unwrap(),
            None => drop(stream.read_to_end(&mut Vec::new())),
        }
    });
    address
}

#[test]
fn a_task_is_alive_unless_it_says_otherwise_or_hangs() {
    let dead = "HTTP/1.1 503 Service Unavailable\r\n\r\nshard 1 has not answered for 42 s\n";
    for (answer, words) in [
        (Some(dead), "shard 1 has not answered for 42 s"),
        (None, "says nothing"),
    ] {
        let output = check(task(answer));
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{err}");
        assert!(err.contains(words), "{err}");
    }
    // One that loads does not listen yet; one whose ports are closed to this process hangs up.
    let addresses = [
        task(Some("HTTP/1.1 200 OK\r\n\r\nalive\n")),
        task(Some("")),
        held_address(),
    ];
    for address in addresses {
        let output = check(address);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
}

#[test]
fn a_server_says_that_it_is_alive() {
    let address = held_address();
    let mut options = options(1, 0, &[]);
    options
        .environment
        .push(("GRPCXX_METRICS_ADDRESS".to_owned(), address.to_string()));
    let cluster = start(options);
    assert!(check(address).status.success());
    let mut page = TcpStream::connect(address).unwrap();
    page.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    page.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with("alive\n"),
        "{answer}"
    );
    cluster.stop(Duration::from_secs(10)).unwrap();
}
