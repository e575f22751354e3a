use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use super::{options, start};

/// What the listener is told next.
fn told(listener: &UnixDatagram) -> String {
    let mut message = [0; 1024];
    listener
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let length = listener.recv(&mut message).unwrap();
    String::from_utf8(message[..length].to_vec()).unwrap()
}

/// Runs a task under a listener of this name, and returns what the listener was told.
fn run_under(name: &str, listener: &UnixDatagram) -> [String; 2] {
    let mut options = options(1, 0, &[]);
    options
        .environment
        .push(("NOTIFY_SOCKET".to_owned(), name.to_owned()));
    let grace = ("GRPCXX_SHUTDOWN_GRACE_MS".to_owned(), "60000".to_owned());
    options.environment.push(grace);
    let cluster = start(options);
    let ready = told(listener);
    cluster.stop(Duration::from_secs(10)).unwrap();
    [ready, told(listener)]
}

fn assert_told([ready, stopping]: &[String; 2]) {
    assert!(
        ready.starts_with("READY=1\nSTATUS=job=ps task=0 grpc=127.0.0.1:"),
        "{ready}"
    );
    assert!(
        stopping.starts_with("STOPPING=1\nEXTEND_TIMEOUT_USEC="),
        "{stopping}"
    );
    assert!(stopping.contains("\nSTATUS=stopping: "), "{stopping}");
    // The grace of the tasks below, beyond what the unit gives.
    let time = stopping
        .lines()
        .find_map(|line| line.strip_prefix("EXTEND_TIMEOUT_USEC="));
    assert!(
        time.unwrap().parse::<u64>().unwrap() >= 60_000_000,
        "{stopping}"
    );
}

#[test]
fn systemd_is_told_when_a_task_is_ready_and_when_it_stops() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let listener = UnixDatagram::bind(&path).unwrap();
    assert_told(&run_under(path.to_str().unwrap(), &listener));
}

#[test]
fn systemd_may_listen_at_an_abstract_address() {
    let name = format!("grpcxx-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let listener = UnixDatagram::bind_addr(&address).unwrap();
    assert_told(&run_under(&format!("@{name}"), &listener));
}

#[test]
fn a_task_serves_although_nobody_listens_where_systemd_should() {
    let mut options = options(1, 0, &[]);
    options
        .environment
        .push(("NOTIFY_SOCKET".to_owned(), "/nowhere/notify".to_owned()));
    start(options).stop(Duration::from_secs(10)).unwrap();
}
