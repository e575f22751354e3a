use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::{ClusterError, ClusterSpec, TASKS_MAX, TaskId, check_length};

/// The cluster and the own task, as `TF_CONFIG` tells them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TfConfig {
    /// The cluster; `None` if the text has no task with an address, as of a program that runs
    /// alone.
    pub cluster: Option<ClusterSpec>,
    /// The own task. An evaluator's is not part of the cluster.
    pub task: Option<TaskId>,
    /// Whether tasks are given by their index, as of a cluster of which this task knows a part:
    /// Training Operator writes so where workers come and go.
    pub is_sparse: bool,
}

/// The fields of `TF_CONFIG` that count here; others are TensorFlow's business.
#[derive(Deserialize)]
struct Fields {
    cluster: Option<Jobs>,
    /// What Training Operator writes in place of `cluster`, where workers come and go.
    #[serde(rename = "sparseCluster")]
    sparse_cluster: Option<Jobs>,
    task: Option<Task>,
}

#[derive(Deserialize)]
struct Task {
    #[serde(rename = "type")]
    job: Option<String>,
    index: Option<Index>,
}

/// A task's index, as a number or as digits.
#[derive(Clone, Copy)]
struct Index(u32);

/// Jobs in the order of the text, so that a job that comes twice is seen.
struct Jobs(Vec<(String, Tasks)>);

struct Tasks {
    list: Vec<(u32, String)>,
    /// Whether the text gives each task its index.
    is_indexed: bool,
}

impl TfConfig {
    /// Reads the value of `TF_CONFIG`.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place.
    pub fn parse(text: &str) -> Result<Self, ClusterError> {
        check_length(text)?;
        let fields: Fields = read("TF_CONFIG", text)?;
        let told = fields.cluster.or(fields.sparse_cluster);
        let mut jobs = told.map_or_else(Vec::new, |jobs| jobs.0);
        let task = fields.task.map_or(Ok(None), Task::id)?;
        let is_sparse = jobs.iter().any(|(_, tasks)| tasks.is_indexed);
        if let Some(task) = &task {
            index_own_task(&mut jobs, task);
        }
        // TensorFlow takes a job without tasks for none.
        jobs.retain(|(_, tasks)| !tasks.list.is_empty());
        let cluster = match jobs.is_empty() {
            true => None,
            false => Some(assemble(jobs)?),
        };
        if let (Some(cluster), Some(task)) = (&cluster, &task)
            && !OUTSIDE_JOBS.contains(&task.job.as_str())
        {
            cluster.require(task)?;
        }
        Ok(Self {
            cluster,
            task,
            is_sparse,
        })
    }

    /// The cluster, where there must be one.
    ///
    /// # Errors
    /// There is none.
    pub fn into_cluster(self) -> Result<ClusterSpec, ClusterError> {
        self.cluster.ok_or_else(|| {
            ClusterError::new(
                "TF_CONFIG".to_owned(),
                "no task with an address",
                "add the tasks: {\"cluster\": {\"worker\": [\"host:port\"]}}",
            )
        })
    }
}

impl Task {
    /// The task, if the text names one.
    fn id(self) -> Result<Option<TaskId>, ClusterError> {
        match (self.job, self.index) {
            (Some(job), index) => Ok(Some(TaskId::new(job, index.map_or(0, |index| index.0)))),
            (None, None) => Ok(None),
            (None, Some(index)) => Err(ClusterError::new(
                "`task` of TF_CONFIG".to_owned(),
                &format!("index {}", index.0),
                "name its job too: {\"type\": \"worker\", \"index\": 0}",
            )),
        }
    }
}

/// Gives the own task its index where the text has its address alone: where workers come and go,
/// Training Operator tells a parameter server `{"ps": ["own:2222"], "worker": {}}`, whatever index
/// it has.
fn index_own_task(jobs: &mut [(String, Tasks)], own: &TaskId) {
    let has_coming_tasks = jobs
        .iter()
        .any(|(_, tasks)| tasks.is_indexed && tasks.list.is_empty());
    for (_, tasks) in jobs.iter_mut().filter(|(name, _)| *name == own.job) {
        if let ([(index, _)], true, false) = (&mut *tasks.list, has_coming_tasks, tasks.is_indexed)
        {
            *index = own.index;
        }
    }
}

pub(super) fn cluster(text: &str) -> Result<ClusterSpec, ClusterError> {
    let jobs: Jobs = read("the cluster spec", text)?;
    if jobs.0.is_empty() {
        return Err(ClusterError::new(
            "the cluster spec".to_owned(),
            "no job",
            "add the tasks: {\"worker\": [\"host:port\"]}",
        ));
    }
    assemble(jobs.0)
}

fn read<'a, T: Deserialize<'a>>(what: &str, text: &'a str) -> Result<T, ClusterError> {
    serde_json::from_str(text).map_err(|error| {
        let line = text.lines().nth(error.line().saturating_sub(1)).unwrap_or("");
        ClusterError::new(
            format!("{what}, line {}, column {}", error.line(), error.column()),
            line.trim(),
            &format!(
                "{error}; write JSON such as {{\"ps\": [\"host:port\"], \"worker\": {{\"0\": \"host:port\"}}}}"
            ),
        )
    })
}

fn assemble(jobs: Vec<(String, Tasks)>) -> Result<ClusterSpec, ClusterError> {
    let mut cluster = ClusterSpec::default();
    for (name, tasks) in jobs {
        cluster.add_job(name, tasks.list)?;
    }
    cluster.check_addresses()?;
    Ok(cluster)
}

impl<'de> Deserialize<'de> for Index {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Index;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the index of a task")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Index, E> {
                u32::try_from(number)
                    .map(Index)
                    .map_err(|_| E::custom("the index of a task is too large"))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Index, E> {
                text.parse()
                    .map(Index)
                    .map_err(|_| E::custom("the index of a task is a whole number"))
            }
        }
        deserializer.deserialize_any(Number)
    }
}

impl<'de> Deserialize<'de> for Jobs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Jobs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of jobs")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Jobs, A::Error> {
                let mut jobs = Vec::new();
                let mut room = TASKS_MAX;
                while let Some(name) = map.next_key()? {
                    let tasks = map.next_value_seed(TasksSeed { room })?;
                    room -= tasks.list.len();
                    jobs.push((name, tasks));
                    if jobs.len() > TASKS_MAX {
                        return Err(too_many());
                    }
                }
                Ok(Jobs(jobs))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// Reads the tasks of a job; at most `room` of them.
struct TasksSeed {
    room: usize,
}

impl<'de> DeserializeSeed<'de> for TasksSeed {
    type Value = Tasks;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tasks, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TasksSeed {
    type Value = Tasks;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of addresses, or an object of task index to address")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Tasks, A::Error> {
        let mut tasks = Vec::new();
        for index in 0.. {
            let Some(address) = list.next_element()? else {
                break;
            };
            if tasks.len() == self.room {
                return Err(too_many());
            }
            tasks.push((index, address));
        }
        Ok(Tasks {
            list: tasks,
            is_indexed: false,
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tasks, A::Error> {
        let mut tasks = Vec::new();
        while let Some((index, address)) = map.next_entry::<Index, String>()? {
            if tasks.len() == self.room {
                return Err(too_many());
            }
            tasks.push((index.0, address));
        }
        Ok(Tasks {
            list: tasks,
            is_indexed: true,
        })
    }

    /// Go writes a list that was never made as `null`.
    fn visit_unit<E: Error>(self) -> Result<Tasks, E> {
        Ok(Tasks {
            list: Vec::new(),
            is_indexed: false,
        })
    }
}

fn too_many<E: Error>() -> E {
    E::custom(format!("a cluster has at most {TASKS_MAX} tasks"))
}

/// Jobs that TensorFlow runs beside a cluster.
const OUTSIDE_JOBS: [&str; 1] = ["evaluator"];
