use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::Failure;

/// This program once more, in another role; killed when it is dropped.
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// Who makes the calls, and answers them.
#[derive(Clone, Copy)]
pub(crate) enum Calls {
    OfEngines,
    OfSockets,
}

/// The server.
pub(crate) struct ServerProcess {
    process: Process,
    calls: Calls,
    address: String,
}

/// A client.
pub(crate) struct ClientProcess(Process);

/// Memory that belongs to connections, in bytes.
pub(crate) struct Memory {
    /// Resident memory of the server.
    pub(crate) process: u64,
    /// Buffers of all TCP sockets of this machine.
    pub(crate) sockets: u64,
}

impl Process {
    fn start(arguments: &[&str]) -> Result<Self, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().ok_or("no standard input")?;
        let output = child.stdout.take().ok_or("no standard output")?;
        Ok(Self {
            child,
            input,
            output: BufReader::new(output),
        })
    }

    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err("a process ended early".into());
        }
        Ok(line)
    }

    fn say(&mut self, word: &str) -> Result<(), Failure> {
        writeln!(self.input, "{word}")?;
        self.input.flush()?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ServerProcess {
    pub(crate) fn start(calls: Calls) -> Result<Self, Failure> {
        let mut process = Process::start(&[match calls {
            Calls::OfEngines => "serve",
            Calls::OfSockets => "serve-sockets",
        }])?;
        let address = process.line()?.trim().to_owned();
        Ok(Self {
            process,
            calls,
            address,
        })
    }

    /// Connections accepted so far.
    pub(crate) fn accepted(&mut self) -> Result<u64, Failure> {
        self.process.say("accepted")?;
        Ok(self.process.line()?.trim().parse()?)
    }

    pub(crate) fn memory(&self) -> Result<Memory, Failure> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.child.id()))?;
        let sockets = std::fs::read_to_string("/proc/net/sockstat")?;
        let kib = number_after(&status, "VmRSS:").ok_or("no VmRSS")?;
        let pages = number_after(&sockets, "mem").ok_or("no memory of sockets")?;
        Ok(Memory {
            process: kib << 10,
            sockets: pages << 12,
        })
    }
}

impl ClientProcess {
    pub(crate) fn start(
        server: &ServerProcess,
        connections: usize,
        depth: usize,
        duration: Duration,
    ) -> Result<Self, Failure> {
        let words = [connections, depth, duration.as_millis() as usize].map(|n| n.to_string());
        let [connections, depth, milliseconds] = &words;
        let role = match server.calls {
            Calls::OfEngines => "call",
            Calls::OfSockets => "call-sockets",
        };
        Process::start(&[role, &server.address, connections, depth, milliseconds]).map(Self)
    }

    pub(crate) fn go(&mut self) -> Result<(), Failure> {
        self.0.say("go")
    }

    pub(crate) fn line(&mut self) -> Result<String, Failure> {
        self.0.line()
    }
}

/// Puts the table into the document.
pub(crate) fn write(text: &str) -> Result<(), Failure> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/scaling.md");
    let document = std::fs::read_to_string(path)?;
    let (before, rest) = document.split_once(BEGIN).ok_or("no begin mark")?;
    let (_, after) = rest.split_once(END).ok_or("no end mark")?;
    std::fs::write(path, format!("{before}{BEGIN}\n{text}{END}{after}"))?;
    Ok(())
}

fn number_after(text: &str, word: &str) -> Option<u64> {
    let mut words = text.split_whitespace().skip_while(|found| *found != word);
    words.nth(1)?.parse().ok()
}

const BEGIN: &str = "<!-- scale:begin -->";
const END: &str = "<!-- scale:end -->";
