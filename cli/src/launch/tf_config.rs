//! `TF_CONFIG`: the whole cluster, a part of it, or none.

use grpcxx_runtime::cluster::{ClusterSpec, TaskId, TfConfig};
use serde_json::{Value, json};

use super::found::{TF_CONFIG, Told};
use super::{Environment, LaunchError};

/// Reads the task. Without a cluster it says nothing about others.
pub(super) fn read(environment: &Environment) -> Result<Option<Told>, LaunchError> {
    let Some(text) = environment.text(TF_CONFIG) else {
        return Ok(None);
    };
    let TfConfig {
        cluster,
        task,
        is_sparse,
    } = TfConfig::parse(text).map_err(LaunchError::TfConfig)?;
    let Some(cluster) = cluster else {
        return Ok(Some(alone(task)));
    };
    let named = task.is_some();
    let task = match task {
        Some(task) => task,
        None => only_task(&cluster)?,
    };
    let position = cluster.tasks().position(|(known, _)| known == task);
    let is_whole = !is_sparse && position.is_some();
    Ok(Some(Told {
        name: name_of(&task),
        rank: position.filter(|_| is_whole).map(|rank| rank as u32),
        size: is_whole.then(|| cluster.total_tasks() as u32),
        tf_config: completed(text, &cluster, &task, named),
        is_alone: false,
    }))
}

/// A program without a cluster, as TensorFlow takes it.
fn alone(task: Option<TaskId>) -> Told {
    Told {
        name: task.map_or_else(|| "program".to_owned(), |task| name_of(&task)),
        rank: Some(0),
        size: Some(1),
        tf_config: None,
        is_alone: true,
    }
}

/// The task of a cluster that has no other.
fn only_task(cluster: &ClusterSpec) -> Result<TaskId, LaunchError> {
    let mut tasks = cluster.tasks();
    match (tasks.next(), tasks.next()) {
        (Some((task, _)), None) => Ok(task),
        _ => Err(LaunchError::Half {
            launcher: "whoever writes TF_CONFIG",
            set: "`cluster`",
            missing: "`task`",
        }),
    }
}

/// The text with what programs read and it lacks: the task, and the index of the own address.
/// `None` if nothing is missing.
fn completed(text: &str, cluster: &ClusterSpec, task: &TaskId, is_named: bool) -> Option<String> {
    let mut value: Value = serde_json::from_str(text).ok()?;
    let before = value.clone();
    // Programs know this one alone.
    if value.get("cluster").is_none_or(Value::is_null)
        && let Some(sparse) = value.get("sparseCluster")
    {
        value["cluster"] = sparse.clone();
    }
    if !is_named {
        value["task"] = json!({ "type": task.job, "index": task.index });
    }
    // A parameter server whose list has its own address alone, whatever its index is.
    if let (Some(address), Some(Value::Array(list))) = (
        cluster.address(task),
        value
            .pointer_mut("/cluster")
            .and_then(|jobs| jobs.get_mut(&task.job)),
    ) && list.len() <= task.index as usize
    {
        value["cluster"][&task.job] = json!({ task.index.to_string(): address });
    }
    (value != before).then(|| value.to_string())
}

fn name_of(task: &TaskId) -> String {
    format!("{}:{}", task.job, task.index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Result<Told, LaunchError> {
        Ok(read(&Environment::from([(TF_CONFIG, text)]))?.unwrap())
    }

    #[test]
    fn the_whole_cluster_is_told() {
        let text = r#"{"cluster": {"ps": ["a:1"], "worker": ["b:1", "c:1"]},
                       "task": {"type": "worker", "index": 1}}"#;
        let found = told(text).unwrap();
        assert_eq!((found.rank, found.size), (Some(2), Some(3)));
        assert_eq!((found.name.as_str(), found.tf_config), ("worker:1", None));
    }

    #[test]
    fn an_evaluator_is_beside_the_cluster() {
        let text = r#"{"cluster": {"chief": ["a:1"], "ps": ["b:1"]},
                       "task": {"type": "evaluator", "index": 0}}"#;
        let found = told(text).unwrap();
        assert_eq!((found.name.as_str(), found.rank), ("evaluator:0", None));
        assert!(!found.is_alone && found.tf_config.is_none());
        assert!(found.check_size(Some(2)).is_ok());
    }

    #[test]
    fn the_only_task_of_a_cluster_needs_no_name() {
        let found = told(r#"{"cluster": {"worker": ["a:1"]}, "rpc_layer": "grpc++"}"#).unwrap();
        assert_eq!((found.rank, found.size), (Some(0), Some(1)));
        let completed: Value = serde_json::from_str(&found.tf_config.unwrap()).unwrap();
        assert_eq!(
            completed,
            json!({
                "cluster": {"worker": ["a:1"]}, "rpc_layer": "grpc++",
                "task": {"type": "worker", "index": 0}
            })
        );
    }

    #[test]
    fn without_a_cluster_the_program_is_alone() {
        for (text, name) in [
            ("{}", "program"),
            (r#"{"task": {"type": "worker", "index": 0}}"#, "worker:0"),
            (
                r#"{"cluster": {}, "task": {"type": "evaluator", "index": 0}}"#,
                "evaluator:0",
            ),
        ] {
            let found = told(text).unwrap();
            assert_eq!((found.name.as_str(), found.is_alone), (name, true));
            let error = found.check_size(Some(4)).unwrap_err().to_string();
            assert!(
                error.contains("has no cluster") && error.contains("--launcher local"),
                "{error}"
            );
        }
    }

    /// What Training Operator writes with `enableDynamicWorker`.
    #[test]
    fn a_part_of_the_cluster_is_enough() {
        let worker = r#"{"cluster": {"worker": {"1": "w1:1"}, "ps": ["p0:1", "p1:1"]},
                         "task": {"type": "worker", "index": 1}}"#;
        let found = told(worker).unwrap();
        assert_eq!((found.name.as_str(), found.size), ("worker:1", None));
        assert_eq!(found.tf_config, None);

        let ps = r#"{"cluster": {"worker": {}, "ps": ["p1:1"]},
                     "task": {"type": "ps", "index": 1}}"#;
        let found = told(ps).unwrap();
        assert_eq!((found.name.as_str(), found.size), ("ps:1", None));
        let completed: Value = serde_json::from_str(&found.tf_config.unwrap()).unwrap();
        assert_eq!(
            completed["cluster"],
            json!({"worker": {}, "ps": {"1": "p1:1"}})
        );
    }

    #[test]
    fn programs_are_told_a_sparse_cluster_as_a_cluster() {
        let text = r#"{"sparseCluster": {"worker": {"1": "w1:1"}, "ps": ["p0:1"]},
                       "task": {"type": "worker", "index": 1}}"#;
        let found = told(text).unwrap();
        assert_eq!((found.name.as_str(), found.size), ("worker:1", None));
        let completed: Value = serde_json::from_str(&found.tf_config.unwrap()).unwrap();
        assert_eq!(completed["cluster"], completed["sparseCluster"]);

        let ps = r#"{"sparseCluster": {"worker": {}, "ps": ["p1:1"]},
                     "task": {"type": "ps", "index": 1}}"#;
        let completed: Value = serde_json::from_str(&told(ps).unwrap().tf_config.unwrap()).unwrap();
        let wanted = json!({"worker": {}, "ps": {"1": "p1:1"}});
        assert_eq!(completed["cluster"], wanted);
    }

    #[test]
    fn what_is_half_there_is_named() {
        let text = told(r#"{"cluster": {"ps": ["a:1", "b:1"]}}"#)
            .unwrap_err()
            .to_string();
        assert!(text.contains("`task`"), "{text}");
        assert!(told("{").unwrap_err().to_string().contains("TF_CONFIG"));
    }
}
