//! Processes of PRRTE (`prterun`, `prun`; `mpirun` of Open MPI 5 is one too) and of others that
//! speak PMIx: each is told its rank and its job, and not how many there are.

use super::{Allocation, Environment, LaunchError, Launcher, Leader, world};

/// Reads a rank that PRRTE has started.
pub(super) fn read(environment: &Environment) -> Result<Option<Allocation>, LaunchError> {
    match environment.text("PRTE_LAUNCHED") {
        Some(_) => ranked(environment, Launcher::Prrte),
        None => Ok(None),
    }
}

/// Reads a rank of some other launcher that speaks PMIx.
pub(super) fn pmix(environment: &Environment) -> Result<Option<Allocation>, LaunchError> {
    ranked(environment, Launcher::Pmix)
}

/// The host of `prterun` in the name that it gives to a job, such as `prterun-node1-8289@1`.
pub(super) fn leader_of(environment: &Environment) -> Leader {
    let host = environment.text(JOB).and_then(host_of_job);
    host.map_or(Leader::Unknown(": PMIX_NAMESPACE names no host"), |host| {
        Leader::Host(host.to_owned(), None)
    })
}

fn ranked(
    environment: &Environment,
    launcher: Launcher,
) -> Result<Option<Allocation>, LaunchError> {
    let half = |set, missing| {
        Err(LaunchError::Half {
            launcher: launcher.name(),
            set,
            missing,
        })
    };
    match (environment.number(RANK)?, environment.text(JOB)) {
        (None, None) => Ok(None),
        (Some(_), None) => half(RANK, JOB),
        (None, Some(_)) => half(JOB, RANK),
        // These know how many there are.
        (Some(_), Some(_)) if world::is_told(environment) => world::read(environment),
        (Some(rank), Some(job)) => Ok(Some(Allocation {
            launcher,
            rank,
            size: None,
            leader: leader_of(environment),
            job: format!("pmix {job}"),
        })),
    }
}

/// The name has the program, its host, its process and the number of the job.
fn host_of_job(job: &str) -> Option<&str> {
    let (server, number) = job.rsplit_once('@')?;
    let (rest, process) = server.rsplit_once('-')?;
    let (_, host) = rest.split_once('-')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
    let is_host = !host.is_empty() && host.chars().all(is_name);
    (is_number(number) && is_number(process) && is_host).then_some(host)
}

const RANK: &str = "PMIX_RANK";
const JOB: &str = "PMIX_NAMESPACE";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_of_prrte_has_a_leader_and_is_told_the_size() {
        let environment = Environment::from([
            ("PRTE_LAUNCHED", "1"),
            ("PMIX_RANK", "3"),
            ("PMIX_NAMESPACE", "prterun-gpu-node1-8289@1"),
        ]);
        let found = read(&environment).unwrap().unwrap();
        assert_eq!((found.rank, found.size(Some(4)).unwrap()), (3, 4));
        assert_eq!(found.leader, Leader::Host("gpu-node1".to_owned(), None));
        let text = found.size(None).unwrap_err().to_string();
        assert!(text.contains("PRRTE") && text.contains("-n"), "{text}");
    }

    #[test]
    fn others_that_speak_pmix_tell_no_host() {
        let environment = Environment::from([("PMIX_RANK", "0"), ("PMIX_NAMESPACE", "jsm.7")]);
        assert_eq!(read(&environment).unwrap(), None);
        let found = pmix(&environment).unwrap().unwrap();
        let text = found.rendezvous(None).unwrap_err().to_string();
        assert!(
            text.contains("PMIx") && text.contains("--rendezvous"),
            "{text}"
        );
    }

    #[test]
    fn whoever_says_how_many_ranks_there_are_says_which_this_one_is() {
        let environment = Environment::from([
            ("PRTE_LAUNCHED", "1"),
            ("PMIX_RANK", "0"),
            ("PMIX_NAMESPACE", "prterun-a-1@1"),
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("MASTER_ADDR", "head"),
        ]);
        for found in [read(&environment), pmix(&environment)] {
            let found = found.unwrap().unwrap();
            assert_eq!(
                (found.launcher, found.rank, found.size),
                (Launcher::World, 3, Some(4))
            );
        }
    }

    #[test]
    fn what_is_half_there_is_named() {
        let half = Environment::from([("PMIX_RANK", "0")]);
        let text = pmix(&half).unwrap_err().to_string();
        assert!(text.contains("PMIX_NAMESPACE"), "{text}");
        let half = Environment::from([("PRTE_LAUNCHED", "1"), ("PMIX_NAMESPACE", "a")]);
        let text = read(&half).unwrap_err().to_string();
        assert!(text.contains("PMIX_RANK"), "{text}");
    }

    #[test]
    fn names_of_jobs_have_a_host() {
        for (job, host) in [
            ("prterun-node1-8289@1", Some("node1")),
            ("prte-a-b.c-1@20", Some("a-b.c")),
            ("1877082113", None),
            ("slurm.pmix.17.0", None),
            ("prterun-node1-8289", None),
            ("prterun-8289@1", None),
            ("prterun--8289@1", None),
            ("prterun-a b-8289@1", None),
            ("prterun-a-x@1", None),
        ] {
            assert_eq!(host_of_job(job), host, "{job}");
        }
    }
}
