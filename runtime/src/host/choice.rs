use std::fmt;
use std::io;

use io_uring::{IoUring, Probe, opcode};
use rustix::process::{Resource, getrlimit};

use super::glommio::executor;

/// The hosts there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKind {
    /// A task of a glommio executor.
    Glommio,
    /// A plain loop.
    Native,
}

/// Which host the user wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostSetting {
    /// glommio where it can start, else native.
    #[default]
    Auto,
    /// glommio or nothing.
    Glommio,
    /// Native.
    Native,
}

/// The host of a process, and why it was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostChoice {
    /// The host.
    pub kind: HostKind,
    /// Why, in words for the log.
    pub why: String,
}

impl HostChoice {
    /// Tries what `setting` allows.
    ///
    /// # Errors
    /// glommio is asked for and cannot start: the reason, and what to do.
    pub fn choose(setting: HostSetting) -> Result<Self, String> {
        let chosen = |kind, why: &str| {
            Ok(Self {
                kind,
                why: why.to_owned(),
            })
        };
        match setting {
            HostSetting::Native => chosen(HostKind::Native, "set by GRPCXX_HOST"),
            HostSetting::Auto => match glommio_obstacle() {
                None => chosen(HostKind::Glommio, "it can start here"),
                Some(obstacle) => chosen(
                    HostKind::Native,
                    &format!("glommio cannot start: {obstacle}"),
                ),
            },
            HostSetting::Glommio => match glommio_obstacle() {
                None => chosen(HostKind::Glommio, "set by GRPCXX_HOST"),
                Some(obstacle) => Err(format!(
                    "GRPCXX_HOST=glommio, but glommio cannot start: {obstacle}; remove the obstacle, or set auto or native"
                )),
            },
        }
    }
}

impl HostKind {
    /// The name that logs and the configuration use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Glommio => "glommio",
            Self::Native => "native",
        }
    }
}

impl fmt::Display for HostChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.kind.name(), self.why)
    }
}

/// What keeps glommio from starting. It panics where one of these is amiss, so they are tried
/// first.
fn glommio_obstacle() -> Option<String> {
    if let Err(error) = probe_io_uring() {
        return Some(format!("io_uring is not usable: {error}"));
    }
    let limit_bytes = getrlimit(Resource::Memlock).current.unwrap_or(u64::MAX);
    if limit_bytes < MEMLOCK_BYTES_MIN {
        return Some(format!(
            "the limit of locked memory is {limit_bytes} bytes, it needs {MEMLOCK_BYTES_MIN} (raise it with `ulimit -l 512`)"
        ));
    }
    let trial = std::thread::Builder::new()
        .name("grpcxx-trial".to_owned())
        .spawn(|| executor().map(drop));
    match trial.map(std::thread::JoinHandle::join) {
        Ok(Ok(Ok(()))) => None,
        Ok(Ok(Err(error))) => Some(error),
        Ok(Err(_)) => Some("its executor panicked".to_owned()),
        Err(error) => Some(format!("no thread for a trial: {error}")),
    }
}

fn probe_io_uring() -> io::Result<()> {
    let ring = IoUring::new(2)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [
        opcode::PollAdd::CODE,
        opcode::Timeout::CODE,
        opcode::LinkTimeout::CODE,
        opcode::Read::CODE,
        opcode::Recv::CODE,
        opcode::OpenAt::CODE,
    ];
    match needed.iter().find(|code| !probe.is_supported(**code)) {
        None => Ok(()),
        Some(code) => Err(io::Error::other(format!(
            "the kernel lacks its operation {code}"
        ))),
    }
}

/// Locked memory that glommio asks for.
const MEMLOCK_BYTES_MIN: u64 = 512 * 1024;
