//! Where the lines of processes go: to the streams of the launcher under the name of the task, or
//! into a file for each.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use grpcxx_cli::local::{LogLine, Stream};

use crate::terminal::output::write_whole;
use crate::terminal::{Exit, OrExit, Outcome};

/// Takes each line of each process. A process whose lines nobody takes waits, as one does that
/// writes to a terminal itself.
pub(super) struct Lines {
    files: BTreeMap<String, TaskFile>,
    width: usize,
    output: Losses,
    error: Losses,
}

struct TaskFile {
    file: Mutex<File>,
    losses: Losses,
}

/// What one file or stream has not taken. That ends nobody's work, since a full disk is no reason
/// to stop a job, but the user hears of it.
struct Losses {
    place: String,
    lines: AtomicU64,
}

impl Lines {
    /// Opens a file for each name if there is a folder for them.
    pub(super) fn new(names: &[&str], folder: Option<&Path>) -> Outcome<Self> {
        let files = match folder {
            Some(folder) => open_files(names, folder)?,
            None => BTreeMap::new(),
        };
        Ok(Self {
            files,
            width: names.iter().map(|name| name.len()).max().unwrap_or(0),
            output: Losses::of("standard output"),
            error: Losses::of("standard error"),
        })
    }

    /// Writes a line where it belongs.
    pub(super) fn take(&self, line: &LogLine) {
        if let Some(TaskFile { file, losses }) = self.files.get(&line.task) {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            let text = format!("{}\n", line.text);
            return losses.note(write_whole(&mut *file, text.as_bytes()));
        }
        let text = format!("{:width$} | {}\n", line.task, line.text, width = self.width);
        match line.stream {
            Stream::Output => {
                (self.output).note(write_whole(&mut io::stdout().lock(), text.as_bytes()));
            }
            Stream::Error => {
                (self.error).note(write_whole(&mut io::stderr().lock(), text.as_bytes()));
            }
        }
    }

    /// Says how many lines each file and stream has not taken.
    pub(super) fn tell_losses(&self) {
        let files = self.files.values().map(|file| &file.losses);
        files
            .chain([&self.output, &self.error])
            .for_each(Losses::tell);
    }
}

impl Losses {
    fn of(place: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            lines: AtomicU64::new(0),
        }
    }

    fn note(&self, written: io::Result<()>) {
        let Err(cause) = written else {
            return;
        };
        if self.lines.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(
                "a line for {} is lost: {cause}; others may be too, and the end tells how many; \
                 make room there, or send the lines elsewhere",
                self.place
            );
        }
    }

    fn tell(&self) {
        match self.lines.load(Ordering::Relaxed) {
            0 => {}
            1 => tracing::warn!("1 line for {} was lost", self.place),
            lines => tracing::warn!("{lines} lines for {} were lost", self.place),
        }
    }
}

fn open_files(names: &[&str], folder: &Path) -> Outcome<BTreeMap<String, TaskFile>> {
    fs::create_dir_all(folder).or_exit_at(Exit::CannotCreate, || {
        format!("cannot make {}", folder.display())
    })?;
    let open = |name: &&str| {
        let path = folder.join(format!("{}.log", name.replace(':', "-")));
        let file = File::create(&path).or_exit_at(Exit::CannotCreate, || {
            format!("cannot write {}", path.display())
        })?;
        let file = TaskFile {
            file: Mutex::new(file),
            losses: Losses::of(path.display().to_string()),
        };
        Ok(((*name).to_owned(), file))
    };
    names.iter().map(open).collect()
}
