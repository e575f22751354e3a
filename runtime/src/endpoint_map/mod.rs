//! `.endpoint_map`: which star address belongs to which task.
//!
//! One line for each task, `grpc_host:grpc_port=star_host:star_port`, the same file for all
//! processes. What DeepRec accepts means the same here: keys match byte for byte, nothing is
//! trimmed, the last of equal keys counts, entries of others are ignored. Blank lines and comments
//! without `=` are accepted too.

mod address;
mod check;
mod error;

use std::collections::HashMap;
use std::fmt;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

pub use address::{StarAddress, star_port};
pub use check::Report;
pub use error::{EndpointMapError, Problem};

use crate::cluster::{ADDRESS_BYTES_MAX, ClusterSpec, TASKS_MAX, TaskId, split_address};
use crate::open_regular_file;

/// The lines of a map, in their order.
#[derive(Clone, Debug)]
pub struct EndpointMap {
    path: PathBuf,
    entries: Vec<Entry>,
    by_key: HashMap<String, usize>,
}

/// One line of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number of the line, from 1.
    pub line: usize,
    /// What stands before `=`.
    pub key: String,
    /// What stands behind `=`; may end with a carriage return.
    pub value: String,
}

/// Name of the file.
pub const FILE_NAME: &str = ".endpoint_map";
/// Most lines that are entries: each task's, and as many again for old ones and for duplicates.
pub const ENTRIES_MAX: usize = 2 * TASKS_MAX;
/// Longest line, in bytes: two addresses, `=`, and some white space.
pub const LINE_BYTES_MAX: usize = 2 * ADDRESS_BYTES_MAX + 1 + 64;
/// Largest file, in bytes.
pub const FILE_BYTES_MAX: usize = ENTRIES_MAX * LINE_BYTES_MAX;

/// Where the map is: at `explicit` if that is given, else in `directory`
/// (`TF_SEASTAR_ENDPOINT_MAP_PATH`), else in the working directory.
pub fn search(explicit: Option<&Path>, directory: Option<&Path>) -> PathBuf {
    match (explicit, directory) {
        (Some(path), _) => path.to_owned(),
        (None, Some(directory)) => directory.join(FILE_NAME),
        (None, None) => Path::new(".").join(FILE_NAME),
    }
}

impl EndpointMap {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// [`EndpointMapError::Missing`] if there is none; otherwise all that is wrong with it.
    pub fn read(path: &Path) -> Result<Self, EndpointMapError> {
        let unreadable = |error: std::io::Error| match error.kind() {
            ErrorKind::NotFound => EndpointMapError::Missing {
                path: path.to_owned(),
            },
            kind => EndpointMapError::Unreadable {
                path: path.to_owned(),
                kind,
                message: error.to_string(),
            },
        };
        let mut text = Vec::new();
        open_regular_file(path)
            .and_then(|file| file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut text))
            .map_err(unreadable)?;
        Self::parse(path, &text)
    }

    /// Reads the content of a file; `path` is for errors.
    ///
    /// # Errors
    /// All lines that are wrong.
    pub fn parse(path: &Path, text: &[u8]) -> Result<Self, EndpointMapError> {
        let wrong = |problems| EndpointMapError::Wrong {
            path: path.to_owned(),
            problems,
        };
        if text.len() > FILE_BYTES_MAX {
            return Err(wrong(vec![Problem::whole_file(
                format!("more than {FILE_BYTES_MAX} bytes"),
                "remove the entries of tasks that are gone".to_owned(),
            )]));
        }
        let mut map = Self {
            path: path.to_owned(),
            entries: Vec::new(),
            by_key: HashMap::new(),
        };
        let mut problems = Vec::new();
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            match parse_line(index + 1, line) {
                Ok(Some(_)) if map.entries.len() == ENTRIES_MAX => {
                    problems.push(Problem::at(
                        index + 1,
                        1,
                        "one more entry",
                        format!("a map has at most {ENTRIES_MAX} entries; remove old ones"),
                    ));
                    break;
                }
                Ok(Some(entry)) => map.push(entry),
                Ok(None) => {}
                Err(problem) => problems.push(problem),
            }
            if problems.len() == PROBLEMS_MAX {
                break;
            }
        }
        if problems.is_empty() {
            Ok(map)
        } else {
            Err(wrong(problems))
        }
    }

    /// Makes the map of a cluster. `rule` gives the star port of a task from its host and its gRPC
    /// port.
    ///
    /// # Errors
    /// The rule has no port for a task, or gives an address twice.
    pub fn generate(
        cluster: &ClusterSpec,
        mut rule: impl FnMut(&TaskId, &str, u16) -> Result<u16, String>,
    ) -> Result<Self, EndpointMapError> {
        let mut map = Self {
            path: PathBuf::from(FILE_NAME),
            entries: Vec::with_capacity(cluster.total_tasks()),
            by_key: HashMap::with_capacity(cluster.total_tasks()),
        };
        let mut problems = Vec::new();
        for (task, address) in cluster.tasks() {
            let line = map.entries.len() + 1;
            let star = split_address(address)
                .and_then(|(host, port)| Ok((host, rule(&task, host, port)?)));
            match star {
                Ok((host, port)) => map.push(Entry {
                    line,
                    key: address.to_owned(),
                    value: StarAddress {
                        host: host.to_owned(),
                        port,
                    }
                    .to_string(),
                }),
                Err(reason) => problems.push(Problem::at(line, 1, address, reason)),
            }
        }
        let report = map.check(cluster);
        if problems.is_empty() {
            problems = report.wrong;
            problems.extend(report.clashes);
        }
        if problems.is_empty() {
            return Ok(map);
        }
        Err(EndpointMapError::Wrong {
            path: map.path,
            problems,
        })
    }

    /// Where the map was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All entries in their order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The entry that counts for a gRPC address, which must match byte for byte.
    pub fn entry(&self, grpc_address: &str) -> Option<&Entry> {
        self.by_key.get(grpc_address).map(|at| &self.entries[*at])
    }

    /// The star address of the task with this gRPC address.
    ///
    /// # Errors
    /// There is no entry, or its value is not `host:port`.
    pub fn star_address(
        &self,
        task: &TaskId,
        grpc_address: &str,
    ) -> Result<StarAddress, EndpointMapError> {
        self.find(task, grpc_address)
            .map_err(|problem| EndpointMapError::Wrong {
                path: self.path.clone(),
                problems: vec![problem],
            })
    }

    fn push(&mut self, entry: Entry) {
        self.by_key.insert(entry.key.clone(), self.entries.len());
        self.entries.push(entry);
    }
}

/// Writes a file that reads back as the same entries, for DeepRec too.
impl fmt::Display for EndpointMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.entries
            .iter()
            .try_for_each(|entry| writeln!(f, "{}={}", entry.key, entry.value))
    }
}

/// The entry of a line, if it is one.
fn parse_line(number: usize, line: &[u8]) -> Result<Option<Entry>, Problem> {
    if line.len() > LINE_BYTES_MAX {
        let shown = String::from_utf8_lossy(&line[..64]);
        let wanted = format!("a line has at most {LINE_BYTES_MAX} bytes: `{FORM}`");
        return Err(Problem::at(number, LINE_BYTES_MAX + 1, &shown, wanted));
    }
    // Keys are compared with ASCII, which a replaced byte never equals.
    let line = String::from_utf8_lossy(line);
    let mut signs = line.match_indices('=').map(|(at, _)| at);
    match (signs.next(), signs.next()) {
        (Some(at), None) => Ok(Some(Entry {
            line: number,
            key: line[..at].to_owned(),
            value: line[at + 1..].to_owned(),
        })),
        (None, _) if line.trim().is_empty() || line.starts_with('#') => Ok(None),
        (None, _) => {
            let wanted = format!("write `{FORM}`, or begin a comment with `#`");
            Err(Problem::at(number, columns(&line), line.trim_end(), wanted))
        }
        (Some(_), Some(second)) => {
            let wanted = if line.starts_with('#') {
                "write comments without `=`".to_owned()
            } else {
                format!("write one `=` only, and each task on a line of its own: `{FORM}`")
            };
            let column = columns(&line[..second]);
            Err(Problem::at(number, column, line.trim_end(), wanted))
        }
    }
}

/// Number of the column behind `text`, counted in characters from 1.
fn columns(text: &str) -> usize {
    text.trim_end_matches('\r').chars().count() + 1
}

/// What a line looks like.
const FORM: &str = "grpc_host:grpc_port=star_host:star_port";
/// Most problems that are told together.
const PROBLEMS_MAX: usize = 20;

#[cfg(test)]
mod tests;
