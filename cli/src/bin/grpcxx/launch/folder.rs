use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt;

use grpcxx_cli::launch::Plan;
use tempfile::TempDir;

use crate::terminal::{Exit, Failure, OrExit, Outcome};

/// The folder with what the processes of a launcher share: the endpoint map and the token. It goes
/// with the launcher.
#[derive(Debug)]
pub(super) struct Folder {
    folder: TempDir,
    has_token: bool,
}

impl Folder {
    pub(super) fn make(plan: &Plan, has_token: bool) -> Outcome<Self> {
        let folder = tempfile::Builder::new().prefix("grpcxx-launch-").tempdir();
        let folder = folder.or_exit_at(Exit::CannotCreate, || {
            "cannot make a folder for temporary files".to_owned()
        })?;
        let map = folder.path().join(".endpoint_map");
        std::fs::write(&map, plan.endpoint_map()).or_exit_at(Exit::CannotCreate, || {
            format!("cannot write {}", map.display())
        })?;
        let made = Self { folder, has_token };
        if has_token {
            made.write_token()?;
        }
        Ok(made)
    }

    /// The variables that lead to what is here.
    pub(super) fn environment(&self) -> Vec<(String, OsString)> {
        let map = (
            "TF_SEASTAR_ENDPOINT_MAP_PATH".to_owned(),
            self.folder.path().into(),
        );
        let token = (TOKEN_FILE.to_owned(), self.token_path().into());
        if self.has_token {
            vec![map, token]
        } else {
            vec![map]
        }
    }

    fn token_path(&self) -> std::path::PathBuf {
        self.folder.path().join("token")
    }

    fn write_token(&self) -> Outcome {
        for name in ["GRPCXX_TOKEN", TOKEN_FILE] {
            if std::env::var_os(name).is_some_and(|value| !value.is_empty()) {
                return Err(Failure::new(
                    Exit::Config,
                    format!("--token makes a new token, but {name} is set; leave one of them out"),
                ));
            }
        }
        let path = self.token_path();
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(new_token()?.as_bytes()))
            .or_exit_at(Exit::CannotCreate, || {
                format!("cannot write {}", path.display())
            })
    }
}

/// 32 random bytes as text.
fn new_token() -> std::io::Result<String> {
    let mut bytes = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

const TOKEN_FILE: &str = "GRPCXX_TOKEN_FILE";
