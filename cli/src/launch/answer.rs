//! What comes back from the address of the rendezvous: the words of rank 0, or those of somebody
//! else who listens there.

use std::io::{self, BufReader, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::message::{self, Hello, ORDER_BYTES_MAX, VERSION, Welcome, versions_differ};

/// Who answered.
pub(super) enum Answer {
    /// Rank 0: all ranks are there, or this one is refused.
    Rank0(Welcome),
    /// Rank 0, which is gone before all were there.
    Lost,
    /// Somebody else; what it did.
    Stranger(String),
}

/// Says hello, and waits until `deadline` for a sign that rank 0 is there, which it gives at once,
/// and for its answer as long as `patience` from then on.
pub(super) fn ask(
    mut stream: &TcpStream,
    hello: &Hello,
    deadline: Instant,
    patience: Duration,
) -> Answer {
    if let Err(error) = message::write(&mut stream, hello) {
        return Answer::Stranger(hung_up(&error));
    }
    let deadline = deadline.min(Instant::now() + HEARD_WAIT);
    let mut reader = BufReader::new(Until { stream, deadline });
    match next(&mut reader) {
        Ok(Welcome::Known(VERSION)) => {
            reader.get_mut().deadline = Instant::now() + patience;
            next(&mut reader).map_or(Answer::Lost, Answer::Rank0)
        }
        Ok(Welcome::Known(version)) => other_version(hello, version),
        Ok(Welcome::Heard) => other_version(hello, 0),
        Ok(welcome) => Answer::Rank0(welcome),
        Err(stranger) => Answer::Stranger(stranger),
    }
}

fn other_version(hello: &Hello, version_of_rank_0: u32) -> Answer {
    let reason = versions_differ(hello.rank, hello.version, version_of_rank_0);
    Answer::Rank0(Welcome::Refused(reason))
}

/// The next line of rank 0; else what came instead.
fn next(reader: &mut BufReader<Until<'_>>) -> Result<Welcome, String> {
    let mut line = Vec::new();
    let end = message::read_line(reader, ORDER_BYTES_MAX, &mut line);
    match serde_json::from_slice(&line) {
        Ok(welcome) if end.is_ok() => Ok(welcome),
        _ if !line.trim_ascii().is_empty() => Err(format!(
            "who listens there is no rank 0, it says {:?}",
            beginning(&line)
        )),
        _ => Err(match end {
            Ok(()) => hung_up(&io::ErrorKind::UnexpectedEof.into()),
            Err(error) => hung_up(&error),
        }),
    }
}

fn hung_up(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            "who listens there says nothing".to_owned()
        }
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => "who listens there hangs up without an answer".to_owned(),
        _ => error.to_string(),
    }
}

fn beginning(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line.trim_ascii());
    text.chars().take(SHOWN_CHARS_MAX).collect()
}

/// Reads until a point in time, however slowly bytes come.
struct Until<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Read for Until<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left < SHORTEST_WAIT {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(bytes)
    }
}

/// Far longer than rank 0 takes to say that it has heard a rank: who says nothing for so long is
/// somebody else.
const HEARD_WAIT: Duration = Duration::from_secs(15);
/// Shorter waits count as none: the system takes a time of 0 for no limit.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);
/// Most of the words of a stranger that an error repeats.
const SHOWN_CHARS_MAX: usize = 60;
