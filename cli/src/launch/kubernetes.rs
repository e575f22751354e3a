//! Indexed Jobs of Kubernetes, alone or in a JobSet: the index is told. The number of pods and the
//! name of the service in front of them only the manifest has, which gives them as flags.

use super::{Allocation, Environment, LaunchError, Launcher, Leader};

pub(super) fn read(environment: &Environment) -> Result<Option<Allocation>, LaunchError> {
    let Some(rank) = environment.number("JOB_COMPLETION_INDEX")? else {
        return Ok(None);
    };
    Ok(Some(Allocation {
        launcher: Launcher::Kubernetes,
        rank,
        size: None,
        leader: Leader::Unknown(", as its service is named in the manifest only"),
        job: "kubernetes".to_owned(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_is_told_and_the_manifest_gives_the_rest() {
        let third = Environment::from([("JOB_COMPLETION_INDEX", "3")]);
        let found = read(&third).unwrap().unwrap();
        assert_eq!((found.rank, found.size(Some(4)).unwrap()), (3, 4));
        assert_eq!(
            found.rendezvous(Some("train-0.train:10300")).unwrap(),
            "train-0.train:10300"
        );
        let text = found.rendezvous(None).unwrap_err().to_string();
        assert!(
            text.contains("Kubernetes") && text.contains("--rendezvous"),
            "{text}"
        );
        let text = found.size(None).unwrap_err().to_string();
        assert!(text.contains("-n"), "{text}");
        let text = found.size(Some(3)).unwrap_err().to_string();
        assert!(
            text.contains("rank 3") && text.contains("-n is 3"),
            "{text}"
        );
        let word = Environment::from([("JOB_COMPLETION_INDEX", "first")]);
        assert!(
            read(&word)
                .unwrap_err()
                .to_string()
                .contains("JOB_COMPLETION_INDEX")
        );
    }
}
