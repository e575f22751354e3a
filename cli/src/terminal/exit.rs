use std::io::{self, Write};
use std::process::ExitCode;

use grpcxx::model::{FileAction, ModelError};
use grpcxx_cli::launch::LaunchError;
use grpcxx_rpc::{Code, Reason, Status};
use grpcxx_runtime::endpoint_map::EndpointMapError;
use grpcxx_runtime::{EngineError, TlsError};

use super::output::{printed, write_in_time};
use super::plain::plain_lines;

/// Why a program ended, as its exit code; the numbers are those of `sysexits.h` where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// A comparison found a difference.
    Different = 1,
    /// The command line is wrong.
    Usage = 64,
    /// The content of a file or an answer is wrong.
    Data = 65,
    /// A file that should be read is not there.
    NoInput = 66,
    /// A peer cannot be reached, or did not answer in time.
    Unavailable = 69,
    /// The program itself failed.
    Software = 70,
    /// The operating system refused something: memory, a thread, a socket.
    System = 71,
    /// A file cannot be written.
    CannotCreate = 73,
    /// Reading or writing failed half-way.
    InputOutput = 74,
    /// An address is in use; trying again later may help.
    AddressInUse = 75,
    /// A peer answered with an error.
    Refused = 76,
    /// No right to do this.
    NoPermission = 77,
    /// The cluster, the endpoint map or a variable of the environment is wrong.
    Config = 78,
}

impl Exit {
    /// What a reason of the system stands for, if it stands for one of these.
    pub(crate) fn of_system(error: &io::Error) -> Option<Self> {
        match error.kind() {
            io::ErrorKind::AddrInUse => Some(Self::AddressInUse),
            io::ErrorKind::PermissionDenied => Some(Self::NoPermission),
            _ => None,
        }
    }

    /// What it stands for that a file cannot be read which ends a program with `wrong` if its
    /// content is wrong: so does what is no regular file, or no text.
    pub(crate) fn of_file(kind: io::ErrorKind, wrong: Self) -> Self {
        match kind {
            io::ErrorKind::PermissionDenied => Self::NoPermission,
            io::ErrorKind::NotFound
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::InvalidFilename => Self::NoInput,
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => wrong,
            _ => Self::InputOutput,
        }
    }

    /// What it stands for that there is no endpoint map.
    pub(crate) fn of_map(error: &EndpointMapError) -> Self {
        match error {
            EndpointMapError::Missing { .. } => Self::NoInput,
            EndpointMapError::Unreadable { kind, .. } => Self::of_file(*kind, Self::Config),
            EndpointMapError::Wrong { .. } => Self::Config,
        }
    }

    /// What it stands for that an engine did not start. All options of a program's engine come from
    /// variables and arguments.
    pub(crate) fn of_engine(error: &EngineError) -> Self {
        let listen = error.listen_error();
        let system = error.system_error().or(listen.as_ref());
        if let Some(exit) = system.and_then(Self::of_system) {
            return exit;
        }
        match error {
            EngineError::Host(_) | EngineError::Tls(TlsError::Thread(_)) => Self::System,
            EngineError::Options(_)
            | EngineError::Placement(_)
            | EngineError::Policy(_)
            | EngineError::Tls(_) => Self::Config,
        }
    }
}

/// How a program fails: an exit code, and one message for people.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    error: anyhow::Error,
}

/// A value, or the end of the program.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Gives an error its exit code.
pub(crate) trait OrExit<T> {
    /// Ends with `exit`.
    fn or_exit(self, exit: Exit) -> Outcome<T>;
    /// Ends with `exit` and says what was attempted.
    fn or_exit_at(self, exit: Exit, attempt: impl FnOnce() -> String) -> Outcome<T>;
}

impl<T, E: Into<anyhow::Error>> OrExit<T> for Result<T, E> {
    fn or_exit(self, exit: Exit) -> Outcome<T> {
        self.map_err(|error| Failure {
            exit,
            error: error.into(),
        })
    }

    fn or_exit_at(self, exit: Exit, attempt: impl FnOnce() -> String) -> Outcome<T> {
        self.map_err(|error| Failure {
            exit,
            error: error.into().context(attempt()),
        })
    }
}

impl Failure {
    /// A failure in words.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            error: anyhow::Error::msg(message.into()),
        }
    }

    /// Puts in front what was attempted.
    pub(crate) fn at(self, attempt: impl Into<String>) -> Self {
        Self {
            exit: self.exit,
            error: self.error.context(attempt.into()),
        }
    }

    /// The message on one line.
    pub(crate) fn message(&self) -> String {
        format!("{:#}", self.error)
    }

    /// The exit code.
    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    /// Prints the message under the program's name and gives the exit code.
    pub(crate) fn report(&self, program: &str) -> ExitCode {
        // If standard error is closed, or nobody reads it, there is nobody to tell.
        let _ = write_in_time(
            io::stderr(),
            format!("{program}: {}\n", plain_lines(&self.message())),
        );
        ExitCode::from(self.exit as u8)
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Self {
            exit: Exit::of_engine(&error),
            error: error.into(),
        }
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        let exit = match &error {
            ModelError::Io { cause, action, .. } => exit_of_io(cause, *action),
            ModelError::Malformed { .. }
            | ModelError::Tensor { .. }
            | ModelError::Duplicate { .. } => Exit::Data,
        };
        Self {
            exit,
            error: error.into(),
        }
    }
}

impl From<LaunchError> for Failure {
    fn from(error: LaunchError) -> Self {
        let exit = match &error {
            LaunchError::Half { .. }
            | LaunchError::Value { .. }
            | LaunchError::Contradiction(_)
            | LaunchError::NoLeader { .. }
            | LaunchError::TfConfig(_) => Exit::Config,
            LaunchError::Missing { .. }
            | LaunchError::NoRendezvous { .. }
            | LaunchError::Lost { .. }
            | LaunchError::Refused { .. } => Exit::Unavailable,
            LaunchError::System { cause, .. } => match cause.kind() {
                io::ErrorKind::NotFound => Exit::NoInput,
                io::ErrorKind::PermissionDenied => Exit::NoPermission,
                io::ErrorKind::AddrInUse => Exit::AddressInUse,
                _ => Exit::System,
            },
        };
        Self {
            exit,
            error: error.into(),
        }
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        let exit = match (status.code, status.reason) {
            (Code::Unavailable | Code::DeadlineExceeded, _) => Exit::Unavailable,
            // Originals, and we after them, give the code INTERNAL to calls without a connection.
            (_, Reason::NoConnection | Reason::Deadline) => Exit::Unavailable,
            (Code::PermissionDenied | Code::Unauthenticated, _) => Exit::NoPermission,
            _ => Exit::Refused,
        };
        let is_late = status.reason == Reason::Deadline && status.code != Code::DeadlineExceeded;
        let failure = Self {
            exit,
            error: status.into(),
        };
        match is_late {
            // The code and the text are those of originals, which do not say it.
            true => failure.at("the time for the call was over"),
            false => failure,
        }
    }
}

/// Reads the command line. Help and version go to standard output and end with 0; what is wrong
/// ends with [`Exit::Usage`].
pub(crate) fn parse_arguments<P: clap::Parser>() -> Result<P, ExitCode> {
    P::try_parse().map_err(|error| {
        let written = error.print().and_then(|()| io::stdout().flush());
        if error.use_stderr() {
            // If the terminal is closed there is nobody to tell.
            return ExitCode::from(Exit::Usage as u8);
        }
        match printed(written) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => failure.report(P::command().get_name()),
        }
    })
}

fn exit_of_io(error: &io::Error, action: FileAction) -> Exit {
    match (action, error.kind()) {
        (FileAction::Open, kind) => Exit::of_file(kind, Exit::Data),
        (_, io::ErrorKind::PermissionDenied) => Exit::NoPermission,
        (FileAction::Create | FileAction::Replace, _) => Exit::CannotCreate,
        _ => Exit::InputOutput,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_whose_time_is_over_before_there_is_a_connection_say_so() {
        let late = Status::new(Code::Internal, "Seastar channel: unknown error");
        let failure = Failure::from(late.clone().because(Reason::Deadline));
        assert_eq!(failure.exit(), Exit::Unavailable);
        let text = failure.message();
        assert!(
            text.starts_with("the time for the call was over: "),
            "{text}"
        );
        let text = Failure::from(late.because(Reason::NoConnection)).message();
        assert!(!text.contains("time"), "{text}");
    }
}
