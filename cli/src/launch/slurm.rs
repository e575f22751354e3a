//! A step of Slurm: what `srun` sets for each of its tasks.

use super::{Allocation, Environment, LaunchError, Launcher, Leader};

/// Reads the step. In a batch script, which has a rank but is no step, there is none.
pub(super) fn read(environment: &Environment) -> Result<Option<Allocation>, LaunchError> {
    if environment.text(SIZE).is_none() {
        return Ok(None);
    }
    let Some((rank, size)) = environment.rank_of("Slurm", "SLURM_PROCID", SIZE)? else {
        return Ok(None);
    };
    if let (Some(pmi), true) = (environment.number("PMI_RANK")?, size > 1)
        && pmi != rank
    {
        return Err(LaunchError::Contradiction(format!(
            "SLURM_PROCID is {rank}, but PMI_RANK is {pmi}; start this either from srun or from mpirun"
        )));
    }
    let id = |name| environment.text(name).unwrap_or("0");
    let leader = if environment.number("SLURM_STEP_NUM_NODES")? == Some(1) {
        Leader::ThisHost
    } else {
        let hosts = environment
            .text(HOSTS)
            .or_else(|| environment.text("SLURM_JOB_NODELIST"));
        match hosts {
            None => Leader::Unknown(": SLURM_STEP_NODELIST is not set"),
            Some(hosts) => {
                let host = first_host(hosts).ok_or_else(|| LaunchError::Value {
                    name: HOSTS,
                    value: hosts.chars().take(80).collect(),
                    allowed: "a list of hosts such as node[01-04,7],login1".to_owned(),
                })?;
                Leader::Host(host, None)
            }
        }
    };
    Ok(Some(Allocation {
        launcher: Launcher::Slurm,
        rank,
        size: Some(size),
        leader,
        job: format!("slurm {}.{}", id("SLURM_JOB_ID"), id("SLURM_STEP_ID")),
    }))
}

/// The first of `node[01-04,7]-ib,login1`: `node01-ib`. Slurm puts rank 0 there.
fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list;
    loop {
        let end = rest.find(['[', ',']).unwrap_or(rest.len());
        host.push_str(&rest[..end]);
        if !rest[end..].starts_with('[') {
            break;
        }
        let (range, after) = rest[end + 1..].split_once(']')?;
        let first = range.split([',', '-']).next()?;
        if first.is_empty() || !first.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        host.push_str(first);
        rest = after;
    }
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
    (!host.is_empty() && host.chars().all(is_name)).then_some(host)
}

const SIZE: &str = "SLURM_STEP_NUM_TASKS";
const HOSTS: &str = "SLURM_STEP_NODELIST";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_of_a_step_has_a_rank_and_a_leader() {
        let environment = Environment::from([
            ("SLURM_PROCID", "5"),
            ("SLURM_STEP_NUM_TASKS", "8"),
            ("SLURM_STEP_NUM_NODES", "4"),
            ("SLURM_STEP_NODELIST", "gpu[003-005,9]"),
            ("SLURM_JOB_ID", "17"),
            ("SLURM_STEP_ID", "2"),
        ]);
        let found = read(&environment).unwrap().unwrap();
        assert_eq!((found.rank, found.size), (5, Some(8)));
        assert_eq!(found.leader, Leader::Host("gpu003".to_owned(), None));
        assert_eq!(found.job, "slurm 17.2");
    }

    #[test]
    fn a_batch_script_is_no_step() {
        let script = Environment::from([("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")]);
        assert_eq!(read(&script).unwrap(), None);
    }

    #[test]
    fn half_set_and_contradictory_variables_are_named() {
        let half = Environment::from([("SLURM_STEP_NUM_TASKS", "4")]);
        let text = read(&half).unwrap_err().to_string();
        assert!(
            text.contains("SLURM_PROCID") && text.contains("SLURM_STEP_NUM_TASKS"),
            "{text}"
        );
        let outside = Environment::from([("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_PROCID", "4")]);
        let text = read(&outside).unwrap_err().to_string();
        assert!(text.contains("SLURM_PROCID is 4"), "{text}");
        let two = Environment::from([
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_PROCID", "1"),
            ("PMI_RANK", "2"),
        ]);
        let text = read(&two).unwrap_err().to_string();
        assert!(text.contains("PMI_RANK is 2"), "{text}");
        let word = Environment::from([("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_PROCID", "one")]);
        let text = read(&word).unwrap_err().to_string();
        assert!(
            text.contains("SLURM_PROCID") && text.contains("one"),
            "{text}"
        );
    }

    #[test]
    fn lists_of_hosts_begin_with_one() {
        for (list, host) in [
            ("node1", "node1"),
            ("a,b", "a"),
            ("n[01-04]", "n01"),
            ("n[7,9]-ib,x", "n7-ib"),
            ("r[1-2]n[3-4]", "r1n3"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(host), "{list}");
        }
        for list in ["", "n[", "n[]", "n[a-b]", "n[1", "a b", "[,]"] {
            assert_eq!(first_host(list), None, "{list}");
        }
    }
}
