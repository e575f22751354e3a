//! The program, as a reader of its page runs it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};

/// A server that ends with the test.
struct Serving {
    process: Child,
    address: String,
}

impl Serving {
    fn start() -> Self {
        let mut process = program(&["serve", "--listen", "127.0.0.1:0", "--shards", "2"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let address = line.strip_prefix("ready star=").unwrap().trim().to_owned();
        Self { process, address }
    }

    /// What a command prints that is called with the address behind its name.
    fn say(&self, name: &str, rest: &[&str]) -> Output {
        let words = [&[name, &self.address][..], rest].concat();
        program(&words).output().unwrap()
    }

    fn said(&self, name: &str, rest: &[&str]) -> String {
        let output = self.say(name, rest);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name} {rest:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn program(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyvalue"));
    command.args(words).stdin(Stdio::null());
    command
}

#[test]
fn a_server_is_filled_asked_measured_and_interrupted() {
    let mut server = Serving::start();
    for (key, value) in [("b", "2"), ("a", "1"), ("ab", "1 and 2"), ("c", "")] {
        assert_eq!(server.said("put", &[key, value]), "");
    }
    assert_eq!(server.said("get", &["ab"]), "1 and 2\n");
    assert_eq!(server.said("scan", &[]), "a\t1\nab\t1 and 2\nb\t2\nc\t\n");
    assert_eq!(
        server.said("scan", &["--prefix", "a"]),
        "a\t1\nab\t1 and 2\n"
    );
    assert_eq!(
        server.said("scan", &["--start", "ab", "--limit", "1"]),
        "ab\t1 and 2\n"
    );
    assert_eq!(server.said("delete", &["ab"]), "deleted\n");
    assert_eq!(server.said("delete", &["ab"]), "it was not there\n");

    let gone = server.say("get", &["ab"]);
    assert_eq!(gone.status.code(), Some(1));
    let errors = String::from_utf8(gone.stderr).unwrap();
    assert!(errors.contains("there is no key \"ab\""), "{errors}");

    for op in ["get", "put", "scan"] {
        let words = [
            "--op",
            op,
            "--keys",
            "500",
            "--in-flight",
            "4",
            "--seconds",
            "0.2",
        ];
        let line = server.said("load", &words);
        let result: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&result["op"], &result["keys"]), (&op.into(), &500.into()));
        assert!(result["entries_per_s"].as_f64().unwrap() > 0.0, "{line}");
    }

    let process = rustix::process::Pid::from_child(&server.process);
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    assert!(server.process.wait().unwrap().success());
}

#[test]
fn help_names_each_command_and_limit() {
    let text = |words: &[&str]| {
        let output = program(words).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let help = text(&["--help"]);
    for word in ["serve", "get", "put", "delete", "scan", "load", "SIGTERM"] {
        assert!(help.contains(word), "{word} is not in {help}");
    }
    let serve = text(&["serve", "--help"]);
    for word in ["--memory-mib-max", "RESOURCE_EXHAUSTED", "--value-kib-max"] {
        assert!(serve.contains(word), "{word} is not in {serve}");
    }
}

#[test]
fn an_address_where_nobody_listens_is_an_error_that_names_it() {
    let mut child = program(&["get", "127.0.0.1:1", "key"])
        .env("NETWORK_MAX_CONNECTION_TIMEOUT", "300")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut errors)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(errors.contains("127.0.0.1:1"), "{errors}");
}
