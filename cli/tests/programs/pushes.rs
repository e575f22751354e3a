//! Pushes that end in the middle.

use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use grpcxx_rpc::{GraphCall, Status, Tensor, Text};
use grpcxx_runtime::{Engine, STORE_COMMIT};

use super::{TOOL, grpcxx, text, write_model};

/// A task that has a tensor of the model, and at which no push is ever committed. Tells of each
/// that would be.
fn stuck_server() -> (Engine, Receiver<()>, Sender<()>) {
    let server = Engine::builder().listen("127.0.0.1:0").start().unwrap();
    let old = (Text::from("scalar"), Tensor::scalar(1_u8));
    server.store_put(vec![old]).unwrap();
    let (reached, hears) = channel();
    let (go_on, waits) = channel::<()>();
    let (reached, waits) = (Mutex::new(reached), Mutex::new(waits));
    server.register_fn(STORE_COMMIT, move |_: GraphCall| {
        let reached = reached.lock().unwrap_or_else(PoisonError::into_inner);
        reached.send(()).unwrap();
        // Until the other end is dropped.
        let _ = waits.lock().unwrap_or_else(PoisonError::into_inner).recv();
        Ok::<[(&str, Tensor); 0], Status>([])
    });
    (server, hears, go_on)
}

fn staged_tensors(server: &Engine) -> u64 {
    let page = server.exposition().text().into_string();
    let mut lines = page.lines();
    let line = lines.find(|line| line.starts_with("grpcxx_staged_tensors "));
    line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_push_that_is_killed_before_its_end_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    write_model(&folder.path().join("model.safetensors"));
    let (server, reached, _go_on) = stuck_server();
    let address = server.local_addr().unwrap().to_string();
    let mut tool = Command::new(TOOL)
        .args(["push", "model.safetensors", "--star", &address])
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    reached.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(staged_tensors(&server), 306);
    tool.kill().unwrap();
    tool.wait().unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while staged_tensors(&server) > 0 {
        assert!(Instant::now() < end, "the push stays staged");
        std::thread::sleep(Duration::from_millis(20));
    }
    let stored = server.stored();
    assert_eq!(stored, [(Text::from("scalar"), Tensor::scalar(1_u8))]);
}

#[test]
fn a_push_whose_end_takes_too_long_fails_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    write_model(&folder.path().join("model.safetensors"));
    let (server, _reached, _go_on) = stuck_server();
    let address = server.local_addr().unwrap().to_string();
    let pushed = grpcxx(
        folder.path(),
        &[
            "push",
            "model.safetensors",
            "--star",
            &address,
            "--timeout",
            "2",
        ],
    );
    assert_eq!(pushed.status.code(), Some(69), "{}", text(&pushed.stderr));
    assert!(
        text(&pushed.stderr).contains(&address),
        "{}",
        text(&pushed.stderr)
    );
    assert_eq!(server.stored().len(), 1);
}
