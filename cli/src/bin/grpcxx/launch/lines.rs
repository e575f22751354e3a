//! Where the lines of processes go: to the streams of the launcher under the name of the task, or
//! into a file for each.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use grpcxx_cli::local::{LogLine, Stream};

use crate::terminal::{Exit, OrExit, Outcome};

/// Takes each line of each process. A process whose lines nobody takes waits, as one does that
/// writes to a terminal itself.
pub(super) fn lines(
    names: &[&str],
    folder: Option<&Path>,
) -> Outcome<impl Fn(LogLine) + Send + Sync + use<>> {
    let files = match folder {
        Some(folder) => Some(open_files(names, folder)?),
        None => None,
    };
    let width = names.iter().map(|name| name.len()).max().unwrap_or(0);
    Ok(move |line: LogLine| {
        // A disk that is full, or a stream that is closed, ends nobody's work.
        let _ = match (
            files.as_ref().and_then(|files| files.get(&line.task)),
            line.stream,
        ) {
            (Some(file), _) => {
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                writeln!(file, "{}", line.text)
            }
            (None, Stream::Output) => {
                writeln!(io::stdout().lock(), "{:width$} | {}", line.task, line.text)
            }
            (None, Stream::Error) => {
                writeln!(io::stderr().lock(), "{:width$} | {}", line.task, line.text)
            }
        };
    })
}

fn open_files(names: &[&str], folder: &Path) -> Outcome<BTreeMap<String, Mutex<File>>> {
    fs::create_dir_all(folder).or_exit_at(Exit::CannotCreate, || {
        format!("cannot make {}", folder.display())
    })?;
    let open = |name: &&str| {
        let path = folder.join(format!("{}.log", name.replace(':', "-")));
        let file = File::create(&path).or_exit_at(Exit::CannotCreate, || {
            format!("cannot write {}", path.display())
        })?;
        Ok(((*name).to_owned(), Mutex::new(file)))
    };
    names.iter().map(open).collect()
}
