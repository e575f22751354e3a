//! How the ranks of one host find each other's boards: each tells where in its process the board
//! is, and the others open it there by `/proc`. That works between processes of one user that see
//! each other, which the kernel decides.

use std::fmt;
use std::os::fd::AsRawFd;

use grpcxx_memory::{Board, BoardView};

use super::cpus::show_cpus;
use super::{Boards, DATA_BYTES, NONCE};

/// The board of this rank, and what it tells the others of it.
#[derive(Debug)]
pub(crate) struct Offer {
    board: Board,
    told: String,
}

/// Why ranks show each other nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) String);

/// What a rank tells of its board.
#[derive(Debug, PartialEq, Eq)]
struct Place<'a> {
    boot: &'a str,
    processes: &'a str,
    process: u32,
    descriptor: u32,
    nonce: [u64; 2],
}

impl Offer {
    /// # Errors
    /// The system has no memory that can be shared so, or does not say which host this is.
    pub(crate) fn new() -> Result<Self, Refused> {
        let refused = |what: &str, error: &dyn fmt::Display| Refused(format!("{what}: {error}"));
        let board = Board::new(DATA_BYTES).map_err(|error| refused("no shared memory", &error))?;
        let mut nonce = [[0; 8]; 2];
        for (word, bytes) in NONCE.into_iter().zip(&mut nonce) {
            getrandom::fill(bytes).map_err(|error| refused("no random number", &error))?;
            board.set_word(word, u64::from_le_bytes(*bytes));
        }
        show_cpus(&board);
        let descriptor = board.descriptor().map(|descriptor| descriptor.as_raw_fd());
        let descriptor = descriptor.ok_or_else(|| Refused("no descriptor".to_owned()))?;
        let (boot, processes) = here().map_err(|error| refused("no name of this host", &error))?;
        let [first, second] = nonce.map(u64::from_le_bytes);
        let process = std::process::id();
        let told = format!("{boot} {processes} {process} {descriptor} {first:x} {second:x}");
        Ok(Self { board, told })
    }

    /// What the others are told.
    pub(crate) fn told(&self) -> &str {
        &self.told
    }

    /// Opens the boards of all ranks, each of which has told where its own is.
    ///
    /// # Errors
    /// One of them shows none to this process.
    pub(crate) fn open(self, rank: u32, told: &[&str]) -> Result<Boards, Refused> {
        let (boot, processes) = here().map_err(|error| Refused(error.to_string()))?;
        let mut boards = Vec::with_capacity(told.len());
        for (other, text) in (0..).zip(told).filter(|(other, _)| *other != rank) {
            let refused = |why: &str| Refused(format!("rank {other} {why}"));
            let place = Place::parse(text).ok_or_else(|| refused("has no shared memory"))?;
            if place.boot != boot {
                return Err(refused("is on another host"));
            }
            if place.processes != processes {
                return Err(refused("is in another namespace of processes"));
            }
            let board = BoardView::of_process(place.process, place.descriptor, DATA_BYTES);
            let board = board.map_err(|error| refused(&format!("hides its memory: {error}")))?;
            if NONCE.map(|word| board.word_value(word)) != place.nonce {
                return Err(refused("has other memory where its own should be"));
            }
            boards.push((other, board));
        }
        Ok(Boards::new(rank, self.board, boards))
    }
}

impl<'a> Place<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut next = || words.next();
        let place = Self {
            boot: next()?,
            processes: next()?,
            process: next()?.parse().ok()?,
            descriptor: next()?.parse().ok()?,
            nonce: [
                u64::from_str_radix(next()?, 16).ok()?,
                u64::from_str_radix(next()?, 16).ok()?,
            ],
        };
        next().is_none().then_some(place)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which start of which host this is, and in which namespace the numbers of processes count.
fn here() -> std::io::Result<(String, String)> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let processes = std::fs::read_link("/proc/self/ns/pid")?;
    Ok((
        boot.trim().to_owned(),
        processes.to_string_lossy().into_owned(),
    ))
}
