//! A step of Slurm: what `srun` sets for each of its tasks.

use std::collections::HashSet;

use super::hosts::hosts_of;
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
    Ok(Some(Allocation {
        launcher: Launcher::Slurm,
        rank,
        size: Some(size),
        leader: leader(environment, size)?,
        job: format!("slurm {}.{}", id("SLURM_JOB_ID"), id("SLURM_STEP_ID")),
    }))
}

/// The host of rank 0: the first of the step, unless ranks may be on hosts in any order.
fn leader(environment: &Environment, size: u32) -> Result<Leader, LaunchError> {
    if environment.number("SLURM_STEP_NUM_NODES")? == Some(1) {
        return Ok(Leader::ThisHost);
    }
    if is_arbitrary(environment, "SLURM_DISTRIBUTION") {
        return Ok(Leader::Unknown(ARBITRARY));
    }
    let hosts = environment
        .text(HOSTS)
        .or_else(|| environment.text("SLURM_JOB_NODELIST"));
    let Some(hosts) = hosts else {
        return Ok(Leader::Unknown(": SLURM_STEP_NODELIST is not set"));
    };
    let hosts = hosts_of(hosts).ok_or_else(|| LaunchError::Value {
        name: HOSTS,
        value: hosts.chars().take(80).collect(),
        allowed: "a list of hosts such as node[01-04,7],login1".to_owned(),
    })?;
    if let Some(components) = environment.number("SLURM_HET_SIZE")? {
        return Ok(leader_of_components(environment, components, &hosts)
            .unwrap_or(Leader::Unknown(COMPONENTS)));
    }
    // `srun A : B` in an allocation that is no heterogeneous job.
    let counts = [
        environment.number("SLURM_NTASKS")?,
        environment.number("SLURM_NPROCS")?,
    ];
    if let [Some(tasks), Some(own)] = counts
        && tasks == size
        && own != size
    {
        return Ok(Leader::Unknown(COMPONENTS));
    }
    let first = hosts.into_iter().next();
    Ok(first.map_or(Leader::Unknown(""), |host| Leader::Host(host, None)))
}

/// The host of rank 0 in a heterogeneous job: Slurm counts ranks by component, but sorts the hosts
/// of the whole step. Rank 0 is on the first host of the first component that has hosts in it.
fn leader_of_components(
    environment: &Environment,
    components: u32,
    step: &[String],
) -> Option<Leader> {
    let step: HashSet<&str> = step.iter().map(String::as_str).collect();
    for component in 0..components.min(COMPONENTS_MAX) {
        let of = |name: &str| format!("{name}_HET_GROUP_{component}");
        let hosts = hosts_of(environment.text(&of("SLURM_JOB_NODELIST"))?)?;
        let mut shared = hosts
            .into_iter()
            .filter(|host| step.contains(host.as_str()));
        if let Some(host) = shared.next() {
            return Some(match is_arbitrary(environment, &of("SLURM_DISTRIBUTION")) {
                true => Leader::Unknown(ARBITRARY),
                false => Leader::Host(host, None),
            });
        }
    }
    None
}

fn is_arbitrary(environment: &Environment, name: &str) -> bool {
    environment
        .text(name)
        .is_some_and(|distribution| distribution.starts_with("arbitrary"))
}

const ARBITRARY: &str = ": with --distribution=arbitrary it may be any host of the step";
const COMPONENTS: &str =
    ": its step has several components, and Slurm sorts their hosts into one list";
/// Most components of a job; Slurm has as many.
const COMPONENTS_MAX: u32 = 128;
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

    /// A step over both components: ranks 0 and 1 are on `login2`, 2 to 5 on `gpu[1-2]`.
    const HETEROGENEOUS: [(&str, &str); 6] = [
        ("SLURM_PROCID", "4"),
        ("SLURM_STEP_NUM_TASKS", "6"),
        ("SLURM_STEP_NUM_NODES", "3"),
        ("SLURM_STEP_NODELIST", "gpu[1-2],login2"),
        ("SLURM_NTASKS", "6"),
        ("SLURM_NPROCS", "4"),
    ];

    /// The leader of that step, with more variables or other values.
    fn leader_beside(more: &[(&str, &str)]) -> Leader {
        let environment = HETEROGENEOUS.iter().chain(more).copied().collect();
        read(&environment).unwrap().unwrap().leader
    }

    #[test]
    fn rank_0_of_a_heterogeneous_job_is_in_its_first_component() {
        let job = [
            ("SLURM_HET_SIZE", "2"),
            ("SLURM_JOB_NODELIST_HET_GROUP_0", "login[1-2]"),
            ("SLURM_JOB_NODELIST_HET_GROUP_1", "gpu[1-2]"),
        ];
        let host = |name: &str| Leader::Host(name.to_owned(), None);
        assert_eq!(leader_beside(&job), host("login2"));
        let second_alone = [job[0], job[1], job[2], ("SLURM_STEP_NODELIST", "gpu[1-2]")];
        assert_eq!(leader_beside(&second_alone), host("gpu1"));
        let arbitrary = [
            job[0],
            job[1],
            job[2],
            ("SLURM_DISTRIBUTION_HET_GROUP_0", "arbitrary"),
        ];
        assert_eq!(leader_beside(&arbitrary), Leader::Unknown(ARBITRARY));
        for unknown in [
            &job[..1],
            &job[..2],
            &[job[0], ("SLURM_JOB_NODELIST_HET_GROUP_0", "[")],
        ] {
            let unknown = [unknown, &[("SLURM_STEP_NODELIST", "gpu[1-2]")]].concat();
            assert_eq!(leader_beside(&unknown), Leader::Unknown(COMPONENTS));
        }
    }

    #[test]
    fn a_step_of_several_components_in_one_allocation_has_no_known_leader() {
        assert_eq!(leader_beside(&[]), Leader::Unknown(COMPONENTS));
        // srun --preserve-env leaves the numbers of the job there.
        let preserved = [("SLURM_NTASKS", "8"), ("SLURM_NPROCS", "8")];
        let first = Leader::Host("gpu1".to_owned(), None);
        assert_eq!(leader_beside(&preserved), first);
        let one_host = [("SLURM_STEP_NUM_NODES", "1")];
        assert_eq!(leader_beside(&one_host), Leader::ThisHost);
    }

    #[test]
    fn ranks_on_hosts_in_any_order_are_refused_with_what_to_do() {
        let environment = Environment::from([
            ("SLURM_PROCID", "1"),
            ("SLURM_STEP_NUM_TASKS", "3"),
            ("SLURM_STEP_NUM_NODES", "2"),
            ("SLURM_STEP_NODELIST", "n[1-2]"),
            ("SLURM_DISTRIBUTION", "arbitrary"),
        ]);
        let found = read(&environment).unwrap().unwrap();
        let text = found.rendezvous(None).unwrap_err().to_string();
        assert!(
            text.contains("--distribution=arbitrary") && text.contains("--rendezvous HOST:PORT"),
            "{text}"
        );
        assert_eq!(found.rendezvous(Some("n2:14999")).unwrap(), "n2:14999");
    }
}
