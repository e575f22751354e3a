use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a model cannot be read or written; each text names the file and says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The operating system refused a step.
    #[error("cannot {action} {}: {cause}", path.display())]
    Io {
        /// What was attempted.
        action: FileAction,
        /// The file.
        path: PathBuf,
        /// The reason of the operating system.
        cause: io::Error,
    },
    /// The file is not a safetensors file, or a damaged one.
    #[error("{}: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What was found, what is allowed and what to do.
        problem: String,
    },
    /// One tensor of the file is described wrongly, or by a type that cannot be sent.
    #[error("{}: tensor {tensor:?}: {problem}", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// What was found, what is allowed and what to do.
        problem: String,
    },
    /// Two files hold a tensor of the same name.
    #[error(
        "tensor {tensor:?} is in {} and again in {}: a model holds each name once, so rename one or load one of the files only",
        first.display(), second.display()
    )]
    Duplicate {
        /// The tensor's name.
        tensor: String,
        /// The file that was opened first.
        first: PathBuf,
        /// The file that was opened later.
        second: PathBuf,
    },
}

/// A step of reading or writing a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAction {
    /// Opens a file that is there.
    Open,
    /// Asks for its kind and length.
    Examine,
    /// Reads its header.
    ReadHeader,
    /// Reads the data of a tensor.
    ReadTensor,
    /// Makes a new file, which has no name yet.
    Create,
    /// Takes the place of what has its name.
    Replace,
    /// Writes.
    Write,
    /// Gives the finished file a name.
    Name,
    /// Puts the finished file in the place of another.
    Rename,
}

impl fmt::Display for FileAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Examine => "examine",
            Self::ReadHeader => "read the header of",
            Self::ReadTensor => "read a tensor of",
            Self::Create => "create a file beside",
            Self::Replace => "replace",
            Self::Write => "write",
            Self::Name => "name the finished file",
            Self::Rename => "rename the finished file to",
        })
    }
}

impl ModelError {
    pub(super) fn io(
        action: FileAction,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |cause| Self::Io {
            action,
            path,
            cause,
        }
    }
}
