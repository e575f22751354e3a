//! Where the token of a cluster comes from.

use std::fmt;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use grpcxx_rpc::Token;

use super::PolicyError;
use crate::open_regular_file;

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// Where a token is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// This is it.
    Key(Secret),
    /// It is the content of a file, without spaces and line ends around it.
    File(PathBuf),
}

impl Secret {
    /// Keeps a text from being printed.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl TokenSource {
    /// Reads the token.
    ///
    /// # Errors
    /// The file cannot be read, or holds no token.
    pub(super) fn read(&self) -> Result<Token, PolicyError> {
        match self {
            Self::Key(Secret(key)) => {
                Token::new(key.trim().as_bytes()).map_err(|error| PolicyError::Key { error })
            }
            Self::File(path) => read_file(path),
        }
    }
}

fn read_file(path: &Path) -> Result<Token, PolicyError> {
    let unreadable = |error| PolicyError::File {
        path: path.to_owned(),
        error,
    };
    let file = open_regular_file(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?.permissions().mode();
    if mode & OTHERS_MAY_READ != 0 {
        tracing::warn!(
            path = %path.display(),
            "every user of this machine can read the token; `chmod o-r` the file"
        );
    }
    let mut key = Vec::new();
    (file.take(FILE_BYTES_MAX).read_to_end(&mut key)).map_err(unreadable)?;
    Token::new(key.trim_ascii()).map_err(|error| PolicyError::FileKey {
        path: path.to_owned(),
        error,
    })
}

/// The bit of a file's mode that lets every user read it.
const OTHERS_MAY_READ: u32 = 0o004;

/// Most bytes of a file that are read: more than a token has.
const FILE_BYTES_MAX: u64 = 1 << 16;
