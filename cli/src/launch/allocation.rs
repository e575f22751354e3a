//! One process among those that a launcher has started.

use std::fmt;

use super::LaunchError;

/// What the environment says about this process and those beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Who says it.
    pub launcher: Launcher,
    /// The number of this process, counted from 0.
    pub rank: u32,
    /// How many there are; unknown where only the manifest of the job has it.
    pub size: Option<u32>,
    /// Where rank 0 is.
    pub leader: Leader,
    /// What all ranks of a job share, and no other job has.
    pub job: String,
}

/// Who started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `prterun` and `prun` of PRRTE.
    Prrte,
    /// `srun` of Slurm.
    Slurm,
    /// `mpirun` of MPICH and its relatives.
    Pmi,
    /// Another launcher that speaks PMIx.
    Pmix,
    /// `torchrun`, also where another launcher has started it.
    TorchRun,
    /// Whoever else sets `RANK` and `WORLD_SIZE`: Ray, Training Operator.
    World,
    /// A group of a LeaderWorkerSet of Kubernetes.
    LeaderWorkerSet,
    /// An indexed Job of Kubernetes, also as part of a JobSet.
    Kubernetes,
}

/// Where rank 0 waits for the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leader {
    /// All ranks run on one host.
    ThisHost,
    /// On this host; the port follows from the job if it is not told.
    Host(String, Option<u16>),
    /// Nobody says; the reason.
    Unknown(&'static str),
}

impl Allocation {
    /// `host:port` of the rendezvous: the one that was `asked` for, else the one that follows from
    /// the environment.
    ///
    /// # Errors
    /// Neither says it.
    pub fn rendezvous(&self, asked: Option<&str>) -> Result<String, LaunchError> {
        if let Some(address) = asked {
            return Ok(address.to_owned());
        }
        match &self.leader {
            Leader::ThisHost => Ok(format!("127.0.0.1:{}", port_of(&self.job))),
            Leader::Host(host, port) => {
                let port = port.unwrap_or_else(|| port_of(&self.job));
                if host.contains(':') {
                    return Ok(format!("[{host}]:{port}"));
                }
                Ok(format!("{host}:{port}"))
            }
            Leader::Unknown(reason) => Err(LaunchError::NoLeader {
                launcher: self.launcher.name(),
                reason,
            }),
        }
    }

    /// The number of ranks: what the environment says, which `asked` must not contradict.
    ///
    /// # Errors
    /// Nobody says it, or they say different numbers.
    pub fn size(&self, asked: Option<u32>) -> Result<u32, LaunchError> {
        let launcher = self.launcher.name();
        match (self.size, asked) {
            (Some(told), Some(asked)) if told != asked => Err(LaunchError::Contradiction(format!(
                "-n is {asked}, but {launcher} has started {told} processes; leave -n out, or say --launcher local to start {asked} on this host"
            ))),
            (Some(size), _) | (None, Some(size)) if self.rank < size => Ok(size),
            (Some(size), _) | (None, Some(size)) => Err(LaunchError::Contradiction(format!(
                "this is rank {} of {launcher}, but -n is {size}; write the number of all processes",
                self.rank
            ))),
            (None, None) => Err(LaunchError::Contradiction(format!(
                "{launcher} does not say how many processes the job has; give their number with -n"
            ))),
        }
    }
}

impl Launcher {
    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenMpi => "Open MPI",
            Self::Prrte => "PRRTE",
            Self::Slurm => "Slurm",
            Self::Pmi => "PMI",
            Self::Pmix => "PMIx",
            Self::TorchRun => "torchrun",
            Self::World => "RANK and WORLD_SIZE",
            Self::LeaderWorkerSet => "LeaderWorkerSet",
            Self::Kubernetes => "Kubernetes",
        }
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A port that all ranks of a job compute alike, below those of outgoing connections.
fn port_of(job: &str) -> u16 {
    // FNV-1a: it must give the same in each process, and spread.
    let hash = job.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    PORT_FIRST + (hash % u64::from(PORT_COUNT)) as u16
}

const PORT_FIRST: u16 = 10_000;
const PORT_COUNT: u16 = 5_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_follow_from_the_job_or_from_what_was_asked() {
        let mut allocation = Allocation {
            launcher: Launcher::Slurm,
            rank: 0,
            size: Some(2),
            leader: Leader::ThisHost,
            job: "slurm 17.0".to_owned(),
        };
        let first = allocation.rendezvous(None).unwrap();
        assert_eq!(allocation.rendezvous(None).unwrap(), first);
        allocation.job = "slurm 18.0".to_owned();
        assert_ne!(allocation.rendezvous(None).unwrap(), first);
        assert_eq!(allocation.rendezvous(Some("a:1")).unwrap(), "a:1");
        allocation.leader = Leader::Host("fd00::1".to_owned(), Some(7));
        assert_eq!(allocation.rendezvous(None).unwrap(), "[fd00::1]:7");
        allocation.leader = Leader::Unknown("");
        let text = allocation.rendezvous(None).unwrap_err().to_string();
        assert!(text.contains("--rendezvous HOST:PORT"), "{text}");
        let text = allocation.size(Some(3)).unwrap_err().to_string();
        assert!(
            text.contains("-n is 3") && text.contains("2 processes"),
            "{text}"
        );
    }
}
