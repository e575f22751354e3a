//! Which CPU each shard is pinned to.
//!
//! CPUs come from the process's own affinity mask, so cpusets, `taskset` and container limits are
//! kept. The original takes ids from 16 upward and marks them with lock files; here tasks of a host
//! claim the CPUs that they pin shards to. Pinning is left out, with a warning, where there are too
//! few CPUs.

mod claims;

use std::fmt;
use std::str::FromStr;
use std::thread;

pub use claims::CpuClaims;

use grpcxx_memory::cpu_quota;

/// A list of CPU numbers as the kernel writes them: `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList(Vec<usize>);

/// The CPU of each shard, or none where shards are not pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    cpus: Vec<Option<usize>>,
}

/// A placement that cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// A listed CPU is outside the affinity mask.
    #[error("CPU {cpu} is not among the CPUs this process may use ({allowed}); list only those")]
    NotAllowed {
        /// The listed CPU.
        cpu: usize,
        /// What the affinity mask allows.
        allowed: CpuList,
    },
    /// The list is shorter than the number of shards.
    #[error(
        "{shards} shards need {shards} CPUs, but the list has only {listed}; list more, or run fewer shards"
    )]
    ListTooShort {
        /// Shards to place.
        shards: usize,
        /// CPUs in the list.
        listed: usize,
    },
    /// The system refused to pin a thread.
    #[error("cannot pin a thread to CPU {cpu}; check the affinity mask and the container's cpuset")]
    Refused {
        /// The CPU.
        cpu: usize,
    },
}

/// What a placement wants.
#[derive(Clone, Copy, Debug)]
pub struct PlacementRequest<'a> {
    /// Shards to place.
    pub shards: usize,
    /// Whether to pin them.
    pub pin: bool,
    /// CPUs to pin to, in order; pins whatever `pin` says.
    pub list: Option<&'a CpuList>,
    /// Index into the allowed CPUs of the first shard's CPU, so that engines of one host can
    /// differ.
    pub first: usize,
}

/// The CPUs that the calling thread may use, in ascending order. Ask before anything is pinned.
pub fn allowed_cpus() -> CpuList {
    let mut cpus: Vec<usize> = core_affinity::get_core_ids()
        .unwrap_or_default()
        .into_iter()
        .map(|core| core.id)
        .collect();
    cpus.sort_unstable();
    CpuList(cpus)
}

/// How many CPUs the calling thread may use, and has the time of: a control group may allow the
/// time of fewer CPUs than it allows to run on. Ask before anything is pinned.
pub fn usable_cpus() -> usize {
    let allowed = allowed_cpus().as_slice().len();
    thread::available_parallelism().map_or(allowed, |usable| usable.get().min(allowed))
}

/// How many CPUs the calling thread has the time of, which may be half of one. Ask before anything
/// is pinned.
pub fn cpu_time() -> f64 {
    let allowed = allowed_cpus().as_slice().len().max(1) as f64;
    cpu_quota().map_or(allowed, |quota| quota.min(allowed))
}

/// Pins the calling thread.
///
/// # Errors
/// The system refused.
pub fn pin_current_thread(cpu: usize) -> Result<(), PlacementError> {
    if core_affinity::set_for_current(core_affinity::CoreId { id: cpu }) {
        Ok(())
    } else {
        Err(PlacementError::Refused { cpu })
    }
}

impl Placement {
    /// Chooses CPUs out of `allowed`. `claim` says of a CPU whether no other task of the host has
    /// it; it is ours then. The text, if any, is a warning: pinning was wanted but is left out, or
    /// CPUs are shared with other tasks.
    ///
    /// # Errors
    /// The list names a CPU that is not allowed, or is too short.
    pub fn choose(
        request: &PlacementRequest<'_>,
        allowed: &CpuList,
        mut claim: impl FnMut(usize) -> bool,
    ) -> Result<(Self, Option<String>), PlacementError> {
        let shards = request.shards;
        if let Some(list) = request.list {
            let placement = Self::from_list(shards, list, allowed)?;
            let cpus = placement.cpus.iter().flatten().copied();
            let shared = cpus.filter(|cpu| !claim(*cpu)).collect();
            return Ok((placement, warning_of_shared(shared)));
        }
        if !request.pin {
            return Ok((Self::unpinned(shards), None));
        }
        if shards > allowed.0.len() {
            let warning = format!(
                "{shards} shards are not pinned: only {} CPUs may be used ({allowed})",
                allowed.0.len()
            );
            return Ok((Self::unpinned(shards), Some(warning)));
        }
        let count = allowed.0.len();
        let in_turn = (0..count).map(|turn| allowed.0[(request.first + turn) % count]);
        let mut cpus = Vec::with_capacity(shards);
        let mut taken = Vec::new();
        for cpu in in_turn {
            if cpus.len() == shards {
                break;
            }
            let chosen = if claim(cpu) { &mut cpus } else { &mut taken };
            chosen.push(cpu);
        }
        taken.truncate(shards - cpus.len());
        cpus.extend(&taken);
        let cpus = cpus.into_iter().map(Some).collect();
        Ok((Self { cpus }, warning_of_shared(taken)))
    }

    /// Shards that the system may move about.
    pub fn unpinned(shards: usize) -> Self {
        Self {
            cpus: vec![None; shards],
        }
    }

    /// The CPU of a shard; none if it is not pinned.
    pub fn cpu(&self, shard: usize) -> Option<usize> {
        self.cpus.get(shard).copied().flatten()
    }

    /// Whether shards are pinned.
    pub fn is_pinned(&self) -> bool {
        self.cpus.iter().any(Option::is_some)
    }

    fn from_list(shards: usize, list: &CpuList, allowed: &CpuList) -> Result<Self, PlacementError> {
        if let Some(cpu) = list.0.iter().find(|cpu| !allowed.0.contains(cpu)) {
            return Err(PlacementError::NotAllowed {
                cpu: *cpu,
                allowed: allowed.clone(),
            });
        }
        if list.0.len() < shards {
            return Err(PlacementError::ListTooShort {
                shards,
                listed: list.0.len(),
            });
        }
        Ok(Self {
            cpus: list.0[..shards].iter().copied().map(Some).collect(),
        })
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_pinned() {
            return f.write_str("not pinned");
        }
        f.write_str("pinned to")?;
        for (index, cpu) in self.cpus.iter().flatten().enumerate() {
            write!(f, "{}{cpu}", if index == 0 { " " } else { "," })?;
        }
        Ok(())
    }
}

impl CpuList {
    /// The CPU numbers in order.
    pub fn as_slice(&self) -> &[usize] {
        &self.0
    }
}

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut cpus = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (cpu_number(first)?, cpu_number(last)?),
                None => (cpu_number(part)?, cpu_number(part)?),
            };
            if first > last {
                return Err(format!(
                    "range `{part}` runs backward; write `{last}-{first}`"
                ));
            }
            for cpu in first..=last {
                if cpus.contains(&cpu) {
                    return Err(format!("CPU {cpu} is listed twice"));
                }
                cpus.push(cpu);
            }
        }
        Ok(Self(cpus))
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_slice();
        let mut separator = "";
        while let Some(first) = rest.first() {
            let run = rest
                .iter()
                .enumerate()
                .take_while(|(index, cpu)| **cpu == first + index)
                .count();
            match run {
                1 => write!(f, "{separator}{first}")?,
                _ => write!(f, "{separator}{first}-{}", first + run - 1)?,
            }
            separator = ",";
            rest = &rest[run..];
        }
        Ok(())
    }
}

/// What is said of CPUs that other tasks have claimed too.
fn warning_of_shared(cpus: Vec<usize>) -> Option<String> {
    if cpus.is_empty() {
        return None;
    }
    Some(format!(
        "other tasks of this host are pinned to CPU {} too; give each task CPUs of its own in GRPCXX_CPUS, or run fewer shards",
        CpuList(cpus)
    ))
}

fn cpu_number(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(cpu) if cpu <= CPU_NUMBER_MAX => Ok(cpu),
        _ => Err(format!(
            "`{text}` is not a CPU number from 0 to {CPU_NUMBER_MAX}; write a list like `0-3,8`"
        )),
    }
}

/// Largest CPU number that a list may name; Linux masks end there.
const CPU_NUMBER_MAX: usize = 1023;

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> CpuList {
        text.parse().unwrap()
    }

    fn request(shards: usize, pin: bool, cpus: Option<&CpuList>) -> PlacementRequest<'_> {
        PlacementRequest {
            shards,
            pin,
            list: cpus,
            first: 0,
        }
    }

    /// Nobody else has pinned anything.
    fn free(_cpu: usize) -> bool {
        true
    }

    #[test]
    fn tasks_of_one_host_get_cpus_of_their_own_while_there_are_some() {
        let allowed = list("0-3");
        let mut claimed = vec![0, 2];
        let mut place = |shards| {
            let claim = |cpu| {
                let is_free = !claimed.contains(&cpu);
                claimed.push(cpu);
                is_free
            };
            Placement::choose(&request(shards, true, None), &allowed, claim).unwrap()
        };
        let (placement, warning) = place(1);
        assert_eq!(
            (placement.to_string().as_str(), warning),
            ("pinned to 1", None)
        );
        let (placement, warning) = place(2);
        assert_eq!(placement.to_string(), "pinned to 3,0");
        let warning = warning.unwrap();
        assert!(
            warning.contains("pinned to CPU 0 too; give each task"),
            "{warning}"
        );
    }

    #[test]
    fn a_list_of_cpus_that_others_have_is_kept_with_a_warning() {
        let cpus = list("3,1");
        let request = request(2, true, Some(&cpus));
        let (placement, warning) =
            Placement::choose(&request, &list("0-3"), |cpu| cpu != 1).unwrap();
        assert_eq!(placement.to_string(), "pinned to 3,1");
        assert!(warning.unwrap().contains("pinned to CPU 1 too"));
    }

    #[test]
    fn lists_read_as_they_are_written() {
        for text in ["0", "0-3,8", "5,7-9", "3,1"] {
            assert_eq!(list(text).to_string(), text);
        }
        assert_eq!(list(" 1 , 2 ").as_slice(), [1, 2]);
        for (text, part) in [
            ("", "``"),
            ("a", "`a`"),
            ("3-1", "backward"),
            ("1,1", "twice"),
            ("0-99999", "1023"),
            ("-1", "CPU number"),
        ] {
            let error = text.parse::<CpuList>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn pinning_takes_allowed_cpus_only_and_never_more_than_there_are() {
        let allowed = list("2,4-5");
        let (placement, warning) =
            Placement::choose(&request(2, true, None), &allowed, free).unwrap();
        assert_eq!((placement.cpu(0), placement.cpu(1)), (Some(2), Some(4)));
        assert_eq!(
            (warning, placement.to_string()),
            (None, "pinned to 2,4".into())
        );
        let (placement, warning) =
            Placement::choose(&request(4, true, None), &allowed, free).unwrap();
        assert!(!placement.is_pinned());
        assert!(warning.unwrap().contains("only 3 CPUs may be used (2,4-5)"));
        let (placement, _) = Placement::choose(&request(2, false, None), &allowed, free).unwrap();
        assert_eq!(placement, Placement::unpinned(2));
    }

    #[test]
    fn engines_of_one_host_can_start_at_different_cpus() {
        let mut request = request(2, true, None);
        request.first = 2;
        let (placement, _) = Placement::choose(&request, &list("2,4-5"), free).unwrap();
        assert_eq!((placement.cpu(0), placement.cpu(1)), (Some(5), Some(2)));
    }

    #[test]
    fn an_explicit_list_is_checked_and_kept_in_order() {
        let allowed = list("0-3");
        let cpus = list("3,1,0");
        let (placement, _) =
            Placement::choose(&request(2, false, Some(&cpus)), &allowed, free).unwrap();
        assert_eq!((placement.cpu(0), placement.cpu(1)), (Some(3), Some(1)));
        let error = Placement::choose(&request(4, false, Some(&cpus)), &allowed, free).unwrap_err();
        assert!(error.to_string().contains("list more, or run fewer shards"));
        let error =
            Placement::choose(&request(1, true, Some(&list("7"))), &allowed, free).unwrap_err();
        assert!(error.to_string().contains("CPU 7 is not among"));
    }

    #[test]
    fn a_thread_can_be_pinned_to_an_allowed_cpu() {
        std::thread::spawn(|| {
            let allowed = allowed_cpus();
            let cpu = *allowed.as_slice().last().unwrap();
            pin_current_thread(cpu).unwrap();
            assert_eq!(allowed_cpus().as_slice(), [cpu]);
            assert!(pin_current_thread(CPU_NUMBER_MAX).is_err());
        })
        .join()
        .unwrap();
    }
}
