use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use grpcxx_memory::OwnFd;

/// How long an idle CPU may take to wake up while an engine runs.
///
/// The kernel then leaves the deeper sleeps out, on all CPUs of the machine. It forgets the request
/// when the last handle of the file is closed, however the process ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CpuLatency {
    /// As the system says.
    Unset,
    /// At most this long.
    Held(Duration),
    /// This long was asked for, and the system has refused.
    Refused {
        /// What was asked for.
        wanted: Duration,
        /// Why it could not be had, and what would help.
        why: String,
    },
}

/// Asks the kernel for `wanted`. The request holds for as long as the file is open.
pub(super) fn hold(wanted: Option<Duration>) -> (CpuLatency, Option<OwnFd>) {
    hold_in(Path::new(DEVICE), wanted)
}

fn hold_in(device: &Path, wanted: Option<Duration>) -> (CpuLatency, Option<OwnFd>) {
    let Some(wanted) = wanted else {
        return (CpuLatency::Unset, None);
    };
    match request(device, wanted) {
        Ok(file) => {
            // Not for children, which would keep it in force.
            let file = OwnFd::from(OwnedFd::from(file));
            (CpuLatency::Held(wanted), Some(file))
        }
        Err(error) => {
            let help = match error.kind() {
                ErrorKind::PermissionDenied => {
                    "; run as root or give this user the right to write it"
                }
                ErrorKind::NotFound => "; a container needs the device passed into it",
                _ => "",
            };
            let why = format!("{}: {error}{help}", device.display());
            (CpuLatency::Refused { wanted, why }, None)
        }
    }
}

/// The device takes a number of microseconds, as a C `int`.
fn request(device: &Path, wanted: Duration) -> io::Result<File> {
    let latency_us = i32::try_from(wanted.as_micros()).unwrap_or(i32::MAX);
    let mut file = OpenOptions::new().write(true).open(device)?;
    file.write_all(&latency_us.to_ne_bytes())?;
    Ok(file)
}

impl fmt::Display for CpuLatency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unset => f.write_str("unset"),
            Self::Held(latency) => write!(f, "{}us", latency.as_micros()),
            Self::Refused { wanted, why } => {
                write!(f, "unset ({}us refused, {why})", wanted.as_micros())
            }
        }
    }
}

/// The kernel's interface to PM QoS for user space.
const DEVICE: &str = "/dev/cpu_dma_latency";

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::Read;

    use super::*;

    const WANTED: Duration = Duration::from_micros(7);

    #[test]
    fn nothing_is_asked_of_the_system_by_default() {
        let (latency, file) = hold(None);
        assert_eq!(latency, CpuLatency::Unset);
        assert!(file.is_none());
        assert_eq!(latency.to_string(), "unset");
    }

    #[test]
    fn a_refusal_names_the_device_and_what_helps() {
        let (latency, file) = hold_in(Path::new("/nowhere/latency"), Some(WANTED));
        assert!(file.is_none());
        assert_eq!(
            latency.to_string(),
            "unset (7us refused, /nowhere/latency: No such file or directory (os error 2); a container needs the device passed into it)"
        );
    }

    #[test]
    #[expect(clippy::print_stderr, reason = "what is left out must be seen")]
    fn the_kernel_keeps_the_latency_for_as_long_as_the_file_is_open() {
        let (latency, file) = hold(Some(WANTED));
        match (&latency, file) {
            (CpuLatency::Held(held), Some(_file)) => {
                assert_eq!(*held, WANTED);
                assert!(in_force_us() <= 7, "{} us", in_force_us());
                assert_eq!(latency.to_string(), "7us");
            }
            (CpuLatency::Refused { why, .. }, None) => {
                assert!(why.contains(DEVICE), "{why}");
                eprintln!("SKIPPED, no latency was in force: {why}");
            }
            other => panic!("{other:?}"),
        }
    }

    /// The least latency that anybody has asked for.
    fn in_force_us() -> i32 {
        let mut bytes = [0; 4];
        let mut device = File::open(DEVICE).expect("it could be written");
        device.read_exact(&mut bytes).expect("a number");
        i32::from_ne_bytes(bytes)
    }
}
