//! What ranks and rank 0 say to each other: one JSON value a line, of bounded length.

use std::io::{self, BufRead, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Address, End};

/// What a rank says first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    /// The [`VERSION`] of what it says and understands.
    #[serde(default)]
    pub(super) version: u32,
    /// The job it belongs to.
    pub(super) job: String,
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) grpc_port: u16,
    pub(super) star_port: u16,
}

/// What rank 0 answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Welcome {
    /// What a rank 0 says that compares no versions, in place of `Known`.
    Heard,
    /// This rank is known to a rank 0 of this [`VERSION`]; the answer comes when all ranks are
    /// here.
    Known(u32),
    /// All ranks are here, and this is where they are.
    Ranks(Vec<Address>),
    /// This rank is wrong here, or another did not come.
    Refused(String),
}

/// Why a rank and rank 0 cannot understand each other.
pub(super) fn versions_differ(rank: u32, version: u32, version_of_rank_0: u32) -> String {
    format!(
        "rank {rank} speaks version {version} of the rendezvous and rank 0 version {version_of_rank_0}; run the same grpcxx on all hosts"
    )
}

/// What a rank says of its process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Report {
    /// It has ended, having been started again `restart` times.
    Ended { restart: u32, end: End },
    /// It is stopped for the restart of this number.
    Stopped(u32),
}

/// What rank 0 tells all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// End the process for the restart of this number, and say that it is stopped.
    Stop(u32),
    /// Start the process again: those of all ranks are stopped.
    Start(u32),
    /// End the process; all went well.
    Finish,
    /// End the process; the reason.
    Fail(String),
}

pub(super) fn write<T: Serialize>(mut stream: impl Write, value: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Reads a value; a line longer than `bytes_max`, or one that is cut off, is an error.
pub(super) fn read<T: DeserializeOwned>(
    stream: &mut impl BufRead,
    bytes_max: u64,
) -> io::Result<T> {
    let mut line = Vec::new();
    read_line(stream, bytes_max, &mut line)?;
    serde_json::from_slice(&line).map_err(io::Error::from)
}

/// Reads a line into `line`, which has what came of it even where that is an error.
pub(super) fn read_line(
    stream: &mut impl BufRead,
    bytes_max: u64,
    line: &mut Vec<u8>,
) -> io::Result<()> {
    stream.take(bytes_max).read_until(b'\n', line)?;
    match line.last() {
        Some(b'\n') => Ok(()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
        Some(_) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a line that does not end within {bytes_max} bytes"),
        )),
    }
}

/// Changes with what ranks and rank 0 say to each other.
pub(super) const VERSION: u32 = 2;
/// Longest line of a rank.
pub(super) const REPORT_BYTES_MAX: u64 = 64 << 10;
/// Longest line of rank 0: the addresses of all ranks.
pub(super) const ORDER_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_and_whole() {
        let mut bytes = Vec::new();
        write(&mut bytes, &Order::Stop(2)).unwrap();
        let back: Order = read(&mut bytes.as_slice(), 64).unwrap();
        assert_eq!(back, Order::Stop(2));
        for (line, kind) in [
            (b"".as_slice(), io::ErrorKind::UnexpectedEof),
            (b"\"finish\"", io::ErrorKind::InvalidData),
            (b"\"dance\"\n", io::ErrorKind::InvalidData),
            (&[b'1'; 100], io::ErrorKind::InvalidData),
        ] {
            let error = read::<Order>(&mut &*line, 64).unwrap_err();
            assert_eq!(error.kind(), kind, "{line:?}");
        }
    }
}
