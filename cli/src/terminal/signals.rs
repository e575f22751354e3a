use std::fmt;
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator;

use super::{Exit, OrExit, Outcome};

/// The requests to stop that reach this process: SIGINT, SIGTERM, the end of its terminal unless
/// that was to be ignored, as `nohup` says it, and, if asked for, the end of standard input.
pub(crate) struct Signals {
    requests: Receiver<StopRequest>,
    door: Arc<Door>,
}

/// Where requests come in.
struct Door {
    sender: Sender<StopRequest>,
    /// What a request does instead of waiting to be asked for.
    at_once: Mutex<Option<AtOnce>>,
}

type AtOnce = Box<dyn Fn(StopRequest) + Send>;

/// What asked this process to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopRequest {
    Interrupt,
    Terminate,
    HangUp,
    EndOfInput,
    /// This program itself, for a reason of this name.
    Named(&'static str),
}

/// The signal by which this program ends, whatever its work comes to.
static ENDS: OnceLock<StopRequest> = OnceLock::new();

impl StopRequest {
    /// Notes that this program ends by this signal.
    pub(crate) fn ends_program(self) {
        let _is_first = ENDS.set(self);
    }

    /// What a shell says of a program that the signal ended.
    pub(crate) fn exit_code(self) -> i32 {
        match self {
            Self::Interrupt => 128 + SIGINT,
            Self::Terminate => 128 + SIGTERM,
            Self::HangUp => 128 + SIGHUP,
            Self::EndOfInput | Self::Named(_) => 0,
        }
    }
}

impl fmt::Display for StopRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
            Self::HangUp => "SIGHUP",
            Self::EndOfInput => "end of standard input",
            Self::Named(name) => name,
        })
    }
}

impl Signals {
    /// The signal by which this program ends, if one came.
    pub(crate) fn that_ends_program() -> Option<StopRequest> {
        ENDS.get().copied()
    }

    /// Begins to watch; from now on the signals no longer end the process by themselves.
    pub(crate) fn watch() -> Outcome<Self> {
        let (sender, requests) = channel();
        let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
        let mut signals = iterator::Signals::new([SIGINT, SIGTERM].into_iter().chain(hang_up))
            .or_exit_at(Exit::System, || "cannot watch for signals".to_owned())?;
        let door = Arc::new(Door {
            sender,
            at_once: Mutex::new(None),
        });
        let signal_door = Arc::clone(&door);
        spawn("signals", move || {
            for signal in signals.forever() {
                let request = match signal {
                    SIGINT => StopRequest::Interrupt,
                    SIGHUP => StopRequest::HangUp,
                    _ => StopRequest::Terminate,
                };
                if signal_door.take(request).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { requests, door })
    }

    /// From now on each SIGUSR1 runs `act`, on a thread of its own.
    pub(crate) fn at_user_signal(mut act: impl FnMut() + Send + 'static) -> Outcome {
        let mut signals = iterator::Signals::new([SIGUSR1])
            .or_exit_at(Exit::System, || "cannot watch for SIGUSR1".to_owned())?;
        spawn("user-signal", move || {
            for _ in signals.forever() {
                act();
            }
        })
    }

    /// Runs `work`, during which a request ends the program: `end` does that, on another thread.
    pub(crate) fn ending_at_once<T>(
        &self,
        end: impl Fn(StopRequest) + Send + 'static,
        work: impl FnOnce() -> T,
    ) -> T {
        *self.door.at_once() = Some(Box::new(end));
        if let Some(request) = self.wait(Some(Duration::ZERO)) {
            // Its receiver is here.
            let _ = self.door.take(request);
        }
        let done = work();
        *self.door.at_once() = None;
        done
    }

    /// Also takes the end of standard input as a request to stop.
    pub(crate) fn watch_stdin(&self) -> Outcome {
        let door = Arc::clone(&self.door);
        spawn("stdin", move || {
            let mut bytes = [0; 256];
            let mut stdin = io::stdin().lock();
            while matches!(stdin.read(&mut bytes), Ok(read) if read > 0) {}
            // The program may have ended meanwhile.
            let _ = door.take(StopRequest::EndOfInput);
        })
    }

    /// Requests a stop by this name when it is called, from any thread.
    pub(crate) fn request<T: ?Sized>(&self, name: &'static str) -> impl FnOnce(&T) + Send + use<T> {
        let door = Arc::clone(&self.door);
        move |_| {
            // The program may have ended meanwhile.
            let _ = door.take(StopRequest::Named(name));
        }
    }

    /// Waits for the next request, at most as long as `timeout` says.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Option<StopRequest> {
        match timeout {
            None => self.requests.recv().ok(),
            Some(timeout) => self.requests.recv_timeout(timeout).ok(),
        }
    }

    /// Hands over the watch: `act` runs on a thread of its own for each further request.
    pub(crate) fn then(self, mut act: impl FnMut(StopRequest) + Send + 'static) -> Outcome {
        spawn("second-signal", move || {
            while let Ok(request) = self.requests.recv() {
                act(request);
            }
        })
    }
}

impl Door {
    fn take(&self, request: StopRequest) -> Result<(), SendError<StopRequest>> {
        match &*self.at_once() {
            Some(end) => {
                end(request);
                Ok(())
            }
            None => self.sender.send(request),
        }
    }

    fn at_once(&self) -> MutexGuard<'_, Option<AtOnce>> {
        self.at_once.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether this process ignores a signal, as who has started it may have wanted.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let bits = ignored.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_some_and(|bits| bits & 1 << (signal - 1) != 0)
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Outcome {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map(drop)
        .or_exit_at(Exit::System, || format!("cannot start the thread {name:?}"))
}
