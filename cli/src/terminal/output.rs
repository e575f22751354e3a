//! Writes to standard output and standard error that can neither end nor hang the program.

use std::io::{self, Write};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use super::{Exit, OrExit, Outcome};

/// Writes `text` on a thread of its own and waits a short time for it, since a pipe that nobody
/// reads takes nothing for ever.
///
/// # Errors
/// It was not written, or not in time.
pub(crate) fn write_in_time(
    mut output: impl Write + Send + 'static,
    text: String,
) -> io::Result<()> {
    let (sender, written) = channel();
    thread::Builder::new()
        .name("output".to_owned())
        .spawn(move || {
            let result = write_whole(&mut output, text.as_bytes());
            // Who waited for it may have given up.
            let _ = sender.send(result);
        })?;
    match written.recv_timeout(WRITE_TIMEOUT) {
        Ok(result) => result,
        Err(_) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("nobody took it within {} ms", WRITE_TIMEOUT.as_millis()),
        )),
    }
}

/// Writes everything, also to what other processes have made non-blocking.
pub(crate) fn write_whole(output: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match until_ready(|| output.write(bytes))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => bytes = &bytes[written..],
        }
    }
    until_ready(|| output.flush())
}

/// What came of printing a result to standard output.
pub(crate) fn printed(result: io::Result<()>) -> Outcome {
    match result {
        // Whoever reads only the beginning, as `head` does, has what he wants.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.or_exit_at(Exit::InputOutput, || "cannot write the result".to_owned()),
    }
}

fn until_ready<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(RETRY_DELAY),
            result => return result,
        }
    }
}

/// How long a line to a person or a supervisor may take.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time between two tries to write to what takes nothing now.
const RETRY_DELAY: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a byte at a time, and none at every second try.
    struct Slow {
        taken: Vec<u8>,
        is_ready: bool,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.is_ready = !self.is_ready;
            if !self.is_ready {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.taken.push(bytes[0]);
            Ok(1)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_output_that_does_not_block_gets_everything() {
        let mut slow = Slow {
            taken: Vec::new(),
            is_ready: false,
        };
        write_whole(&mut slow, b"a line\n").unwrap();
        assert_eq!(slow.taken, b"a line\n");
    }

    #[test]
    fn a_pipe_that_nobody_reads_is_given_up() {
        let (_reader, writer) = io::pipe().unwrap();
        let error = write_in_time(writer, "x".repeat(1 << 20)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_pipe_without_a_reader_is_an_error() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let error = write_in_time(writer, "x".to_owned()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
