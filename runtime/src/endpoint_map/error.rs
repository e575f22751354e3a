use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;

/// Why a map cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointMapError {
    /// There is no such file.
    Missing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The system does not let the file be read.
    Unreadable {
        /// Where it is.
        path: PathBuf,
        /// What kind of reason the system has.
        kind: ErrorKind,
        /// The system's words.
        message: String,
    },
    /// The content is wrong.
    Wrong {
        /// Where it is.
        path: PathBuf,
        /// All that was found, at least one.
        problems: Vec<Problem>,
    },
}

/// One thing that is wrong, or odd, in a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Number of the line, from 1; 0: the whole file.
    pub line: usize,
    /// Number of the column, from 1, in characters; 0: the whole line.
    pub column: usize,
    /// What is there, shortened.
    pub found: String,
    /// What to do.
    pub wanted: String,
}

impl Problem {
    pub(super) fn at(line: usize, column: usize, found: &str, wanted: String) -> Self {
        let mut shown: String = found.chars().take(SHOWN_CHARS_MAX).collect();
        if shown.len() < found.len() {
            shown.push('…');
        }
        Self {
            line,
            column,
            found: shown,
            wanted,
        }
    }

    pub(super) fn whole_file(found: String, wanted: String) -> Self {
        Self::at(0, 0, &found, wanted)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, self.column) {
            (0, _) => return write!(f, "found {}; {}", self.found, self.wanted),
            (line, 0) => write!(f, "{line}: ")?,
            (line, column) => write!(f, "{line}:{column}: ")?,
        }
        write!(f, "found `{}`; {}", self.found, self.wanted)
    }
}

impl fmt::Display for EndpointMapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { path } => write!(
                f,
                "{}: there is no endpoint map; write one with `grpcxx endpoint-map generate`, or set TF_SEASTAR_ENDPOINT_MAP_PATH to its directory",
                path.display()
            ),
            Self::Unreadable { path, message, .. } => {
                write!(f, "{}: cannot be read: {message}", path.display())
            }
            Self::Wrong { path, problems } => {
                for (index, problem) in problems.iter().enumerate() {
                    let separator = if index == 0 { "" } else { "\n" };
                    let colon = if problem.line == 0 { ": " } else { ":" };
                    write!(f, "{separator}{}{colon}{problem}", path.display())?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for EndpointMapError {}

/// How much of what was found an error repeats.
const SHOWN_CHARS_MAX: usize = 80;
