use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::ModelError;

/// A file that appears under its name only when it is complete.
#[derive(Debug)]
pub(super) struct Output {
    path: PathBuf,
    partial: NamedTempFile,
}

impl Output {
    /// Starts a file beside `path`, in the same folder, so that the last step is a rename.
    pub(super) fn create(path: &Path) -> Result<Self, ModelError> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        if path.is_dir() {
            return Err(ModelError::Malformed {
                path: path.to_owned(),
                problem: "this is a folder; name a file in it".to_owned(),
            });
        }
        let partial = tempfile::Builder::new()
            .prefix(".grpcxx-")
            .suffix(".partial")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)
            .map_err(ModelError::io("create a file beside", path))?;
        Ok(Self {
            path: path.to_owned(),
            partial,
        })
    }

    pub(super) fn file(&self) -> &std::fs::File {
        self.partial.as_file()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file its name; whatever had it before is replaced.
    pub(super) fn finish(self) -> Result<(), ModelError> {
        self.partial
            .as_file()
            .sync_data()
            .map_err(ModelError::io("write", &self.path))?;
        match self.partial.persist(&self.path) {
            Ok(_) => Ok(()),
            Err(error) => Err(ModelError::io("rename the finished file to", self.path)(
                error.error,
            )),
        }
    }
}
