//! What `grpcxx launch` says of lines that it cannot write.

use std::fs::OpenOptions;
use std::os::unix::fs::symlink;
use std::process::Stdio;

use super::launch::launch;
use super::text;

/// Writes four lines and ends well.
const FOUR_LINES: [&str; 4] = ["--", "sh", "-c", "for line in 1 2 3 4; do echo $line; done"];

#[test]
fn lines_that_a_full_file_does_not_take_are_told_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().join("logs");
    std::fs::create_dir(&logs).unwrap();
    symlink("/dev/full", logs.join("worker-0.log")).unwrap();
    let arguments = [&["-n", "2", "--output", "logs"], &FOUR_LINES[..]].concat();
    let output = launch(folder.path(), &arguments).output().unwrap();
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{err}");
    for (line, times) in [
        ("a line for logs/worker-0.log is lost: No space left", 1),
        ("4 lines for logs/worker-0.log were lost", 1),
        ("worker-1.log", 0),
    ] {
        assert_eq!(err.matches(line).count(), times, "{line:?} in {err}");
    }
    let other = std::fs::read_to_string(logs.join("worker-1.log")).unwrap();
    assert_eq!(other, "1\n2\n3\n4\n");
}

#[test]
fn lines_that_a_stream_does_not_take_are_told_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    for (stream, why) in [
        (Stdio::from(full), "No space left"),
        (Stdio::from(closed), "Broken pipe"),
    ] {
        let output = launch(folder.path(), &FOUR_LINES)
            .stdout(stream)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{err}");
        let first = format!("a line for standard output is lost: {why}");
        assert_eq!(err.matches(&first).count(), 1, "{err}");
        let last = "4 lines for standard output were lost";
        assert_eq!(err.matches(last).count(), 1, "{err}");
    }
}
