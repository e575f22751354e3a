//! `grpcxx` that is ended by a signal while an original sends to it.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::TOOL;
use crate::original::{Original, PATIENCE, store};

/// A store of 8 x 4 MiB that is written with pauses, so that a pull of it takes a while.
fn original() -> Original {
    let tensor = |index: usize| (format!("layer.{index}"), vec![index as u8; 4 << 20]);
    let model: Vec<(String, Vec<u8>)> = (0..8).map(tensor).collect();
    Original::start(Duration::from_millis(2), move |asked| {
        store::serve(&model, asked)
    })
}

fn pull(original: &Original, folder: &Path) -> Child {
    // Who runs tests in the background may have SIGHUP ignored, which programs inherit.
    Command::new("env")
        .args([
            "--default-signal=HUP",
            TOOL,
            "pull",
            "--all",
            "--star",
            &original.address.to_string(),
        ])
        .args(["--output", "model.safetensors"])
        .current_dir(folder)
        .env_remove("TF_CONFIG")
        .env("GRPCXX_ARENA_BYTES", "256MiB")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Ends a pull with a signal once so many bytes were written to it; returns its exit code, if it
/// has one.
fn ended_at(original: &Original, bytes: u64, signal: Signal) -> Option<i32> {
    let folder = tempfile::tempdir().unwrap();
    let mut child = pull(original, folder.path());
    original.until_written(bytes);
    if signal == Signal::KILL {
        original.until_queued(1);
    }
    kill_process(Pid::from_child(&child), signal).unwrap();
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        assert!(Instant::now() < end, "the tool did not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Ctrl-C at ten moments of a pull: from the first bytes of the first answer to the last ones.
#[test]
fn an_original_goes_on_after_a_pull_that_was_ended_by_ctrl_c() {
    for moment in 0..10 {
        let original = original();
        let code = ended_at(&original, 1 + moment * (3 << 20), Signal::INT);
        assert_eq!(code, Some(130), "moment {moment}");
        assert!(original.answers_others(), "moment {moment}");
        assert!(!original.is_wedged(), "moment {moment}");
    }
}

/// SIGHUP comes from a terminal that closes.
#[test]
fn an_original_goes_on_after_a_pull_that_was_terminated() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        let original = original();
        assert_eq!(ended_at(&original, 8 << 20, signal), Some(code));
        assert!(original.answers_others());
    }
}

/// What the tests above are about: a tool that cannot leave stops an original for everybody.
#[test]
fn an_original_stops_after_a_pull_that_was_killed() {
    let original = original();
    assert_eq!(ended_at(&original, 4 << 20, Signal::KILL), None);
    original.until_wedged();
}
