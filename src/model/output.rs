use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use tempfile::TempPath;

use super::{FileAction, ModelError};

/// A file that appears under its name only when it is complete.
#[derive(Debug)]
pub(super) struct Output {
    path: PathBuf,
    file: File,
    /// Its name until it is complete, where the file system has no files without a name.
    partial: Option<TempPath>,
}

impl Output {
    /// Starts a file in the folder of `path`, so that the last step is a rename. Where the file
    /// system allows, the file has no name at first: then nothing is left behind even if the
    /// process is killed.
    pub(super) fn create(path: &Path) -> Result<Self, ModelError> {
        // The file that a link leads to is replaced, and not the link, unless it leads nowhere.
        let target = path.canonicalize();
        let path = target.as_deref().unwrap_or(path);
        let refused = |problem: &'static str| {
            let cause = io::Error::new(io::ErrorKind::InvalidInput, problem);
            Err(ModelError::io(FileAction::Replace, path)(cause))
        };
        if path.is_dir() {
            return refused("it is a folder; name a file in it");
        }
        if path.exists() && !path.is_file() {
            return refused("it is a device or a pipe, which no file can replace; name a file");
        }
        let nameless = open(
            folder(path),
            OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
            Mode::from_raw_mode(MODE),
        );
        let (file, partial) = match nameless {
            Ok(descriptor) => (File::from(descriptor), None),
            Err(_) => {
                let named = builder()
                    .tempfile_in(folder(path))
                    .map_err(ModelError::io(FileAction::Create, path))?;
                let (file, partial) = named.into_parts();
                (file, Some(partial))
            }
        };
        Ok(Self {
            path: path.to_owned(),
            file,
            partial,
        })
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file its name; whatever had it before is replaced, and leaves its permissions.
    pub(super) fn finish(self) -> Result<(), ModelError> {
        let failed = |action| ModelError::io(action, &self.path);
        self.file.sync_data().map_err(failed(FileAction::Write))?;
        let partial = match self.partial {
            Some(partial) => partial,
            None => {
                // A file without a name can be linked, but not over another file.
                let open_file = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                builder()
                    .make_in(folder(&self.path), |name| {
                        linkat(CWD, &open_file, CWD, name, AtFlags::SYMLINK_FOLLOW)
                            .map_err(io::Error::from)
                    })
                    .map_err(failed(FileAction::Name))?
                    .into_temp_path()
            }
        };
        if let Ok(former) = std::fs::metadata(&self.path) {
            (self.file.set_permissions(former.permissions())).map_err(failed(FileAction::Write))?;
        }
        partial
            .persist(&self.path)
            .map_err(|error| failed(FileAction::Rename)(error.error))?;
        // Else the new name may not outlast a loss of power, though all bytes do.
        File::open(folder(&self.path))
            .and_then(|folder| folder.sync_all())
            .map_err(failed(FileAction::Write))
    }
}

fn builder() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder
        .prefix(".grpcxx-")
        .suffix(".partial")
        .permissions(Permissions::from_mode(MODE));
    builder
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Read and write for all, less the process's mask.
const MODE: u32 = 0o666;

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_link_keeps_its_place_and_a_pipe_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("target"), "before").unwrap();
        std::os::unix::fs::symlink("target", path("link")).unwrap();
        let output = Output::create(&path("link")).unwrap();
        output.file().write_all(b"after").unwrap();
        output.finish().unwrap();
        assert_eq!(std::fs::read(path("target")).unwrap(), b"after");
        assert!(path("link").is_symlink());
        rustix::fs::mkfifoat(CWD, path("pipe"), Mode::from_raw_mode(MODE)).unwrap();
        let error = Output::create(&path("pipe")).unwrap_err().to_string();
        assert!(error.contains("a device or a pipe"), "{error}");
    }
}
