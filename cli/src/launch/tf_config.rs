//! `TF_CONFIG`, which has the whole cluster.

use grpcxx_runtime::cluster::TfConfig;

use super::{Allocation, Environment, LaunchError, Launcher, Leader};

pub(super) fn read(environment: &Environment) -> Result<Option<Allocation>, LaunchError> {
    let Some(text) = environment.text("TF_CONFIG") else {
        return Ok(None);
    };
    let told = TfConfig::parse(text).map_err(LaunchError::TfConfig)?;
    let Some(task) = told.task else {
        return Err(LaunchError::Half {
            launcher: "whoever writes TF_CONFIG",
            set: "`cluster`",
            missing: "`task`",
        });
    };
    let size = told.cluster.total_tasks() as u32;
    let rank = told
        .cluster
        .tasks()
        .position(|(known, _)| known == task)
        .ok_or_else(|| {
            LaunchError::Contradiction(format!(
                "TF_CONFIG says that this is task {}:{}, which its cluster does not have",
                task.job, task.index
            ))
        })? as u32;
    Ok(Some(Allocation {
        launcher: Launcher::TfConfig,
        rank,
        size: Some(size),
        leader: Leader::Unknown(""),
        job: String::new(),
        told: Some((told.cluster, task)),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_cluster_is_told() {
        let text = r#"{"cluster": {"ps": ["a:1"], "worker": ["b:1", "c:1"]},
                       "task": {"type": "worker", "index": 1}}"#;
        let found = read(&Environment::from([("TF_CONFIG", text)]))
            .unwrap()
            .unwrap();
        assert_eq!((found.rank, found.size), (2, Some(3)));
        assert_eq!(found.told.unwrap().1.job, "worker");
    }

    #[test]
    fn what_is_half_there_is_named() {
        let without_task = r#"{"cluster": {"ps": ["a:1"]}}"#;
        let text = read(&Environment::from([("TF_CONFIG", without_task)]))
            .unwrap_err()
            .to_string();
        assert!(text.contains("`task`"), "{text}");
        let damaged = read(&Environment::from([("TF_CONFIG", "{")]));
        assert!(damaged.unwrap_err().to_string().contains("TF_CONFIG"));
    }
}
