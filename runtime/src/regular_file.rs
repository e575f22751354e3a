//! Files that somebody names in a setting.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file for reading.
///
/// # Errors
/// The system refuses, or the path names something else: opening a FIFO would wait for a writer for
/// ever, and a device may never end.
pub fn open_regular_file(path: &Path) -> io::Result<File> {
    // Files themselves do not care for the flag.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "it is not a regular file; write its content into one",
    ))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::Read;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_nothing_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "content").unwrap();
        let mut text = String::new();
        let mut file = open_regular_file(&path).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "content");
        let fifo = folder.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for other in [fifo.as_path(), folder.path(), Path::new("/dev/zero")] {
            let error = open_regular_file(other).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{other:?}");
        }
        let missing = open_regular_file(&folder.path().join("none")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
