//! C programs in processes of their own, whose variables alone make them speak TLS.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::certificates::Authority;
use crate::{Library, PLAIN, compile, root};

/// A running program, which ends when its standard input does.
struct Running {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Running {
    fn start(program: &Path, arguments: &[&str], variables: &[(&str, String)]) -> Self {
        let mut child = Command::new(program)
            .args(arguments)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let output = child.stdout.take().expect("it is piped");
        Self {
            child,
            lines: BufReader::new(output),
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("text");
        line.trim_end().to_owned()
    }

    /// Lets a client call once more; returns how that ended.
    fn call(&mut self) -> String {
        let input = self.child.stdin.as_mut().expect("it is piped");
        input.write_all(b"!").expect("it runs");
        self.line()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let status = self.child.wait().expect("it was started");
        assert!(std::thread::panicking() || status.success(), "{status}");
    }
}

#[test]
fn certificates_by_variables_alone() {
    let source = root().join("tests/programs/tls.c");
    let Some(program) = compile(&source, &PLAIN, Library::Shared) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::new(folder.path());
    for task in ["ps", "worker"] {
        authority.sign(task, &format!("grpcxx://c/{task}/0"));
    }
    authority.sign("other", "grpcxx://c/worker/7");
    let mut server = Running::start(&program, &["serve", "ps"], &authority.variables("ps"));
    let address = server.line();
    let call = |index, file| {
        let arguments = ["call", "worker", &address, index];
        Running::start(&program, &arguments, &authority.variables(file))
    };
    let mut first = call("0", "worker");
    assert_eq!(first.call(), "OK");
    let wrong_server = call("1", "worker").call();
    assert!(
        wrong_server.starts_with("UNAUTHENTICATED") && wrong_server.contains("ps/1 was called"),
        "{wrong_server}"
    );
    let wrong_client = call("0", "other").call();
    assert!(
        wrong_client.starts_with("UNAUTHENTICATED") && wrong_client.contains("is worker/0"),
        "{wrong_client}"
    );

    let renewed = Authority::new(folder.path());
    for task in ["ps", "worker"] {
        renewed.sign(task, &format!("grpcxx://c/{task}/0"));
    }
    let mut second = call("0", "worker");
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let outcome = second.call();
        if outcome == "OK" {
            break;
        }
        assert!(
            outcome.starts_with("UNAUTHENTICATED") && Instant::now() < end,
            "{outcome}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    // The connection that was there has stayed.
    assert_eq!(first.call(), "OK");
}
