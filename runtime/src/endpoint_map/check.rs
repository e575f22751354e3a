use std::collections::{HashMap, HashSet};

use super::{EndpointMap, EndpointMapError, Entry, FORM, Problem, StarAddress};
use crate::cluster::{ClusterSpec, TaskId};

/// What a map is worth for a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What keeps the cluster from working, with DeepRec too: tasks without an entry, values that
    /// mean nothing.
    pub wrong: Vec<Problem>,
    /// Addresses that two tasks would share.
    pub clashes: Vec<Problem>,
    /// What works, but was probably not meant.
    pub odd: Vec<Problem>,
}

impl Report {
    /// Whether the map serves the cluster, and nothing about it is odd.
    pub fn is_clean(&self) -> bool {
        self.wrong.is_empty() && self.clashes.is_empty() && self.odd.is_empty()
    }
}

impl EndpointMap {
    /// Holds the map against a cluster and tells everything that is missing or odd.
    pub fn check(&self, cluster: &ClusterSpec) -> Report {
        let mut report = Report::default();
        let mut owners: HashMap<StarAddress, TaskId> = HashMap::new();
        let grpc_addresses: HashSet<&str> = cluster.tasks().map(|(_, address)| address).collect();
        for (task, grpc_address) in cluster.tasks() {
            let star = match self.find(&task, grpc_address) {
                Ok(star) => star,
                Err(problem) => {
                    report.wrong.push(problem);
                    continue;
                }
            };
            let line = self.entry(grpc_address).map_or(0, |entry| entry.line);
            let text = star.to_string();
            if let Some(owner) = owners.get(&star) {
                let wanted = format!("give {task} a star address of its own; {owner} has this one");
                report.clashes.push(Problem::at(line, 0, &text, wanted));
            } else if grpc_addresses.contains(text.as_str()) {
                let wanted =
                    format!("give {task} another star port; this is a task's gRPC address");
                report.clashes.push(Problem::at(line, 0, &text, wanted));
            }
            owners.insert(star, task);
        }
        report.odd = self.oddities(&grpc_addresses);
        report
    }

    /// The star addresses of all tasks of a cluster, in its order.
    ///
    /// # Errors
    /// Everything that [`Report::wrong`] holds.
    pub fn star_addresses(
        &self,
        cluster: &ClusterSpec,
    ) -> Result<Vec<(TaskId, StarAddress)>, EndpointMapError> {
        let mut problems = Vec::new();
        let mut addresses = Vec::with_capacity(cluster.total_tasks());
        for (task, grpc_address) in cluster.tasks() {
            match self.find(&task, grpc_address) {
                Ok(star) => addresses.push((task, star)),
                Err(problem) => problems.push(problem),
            }
        }
        if problems.is_empty() {
            return Ok(addresses);
        }
        Err(EndpointMapError::Wrong {
            path: self.path.clone(),
            problems,
        })
    }

    pub(super) fn find(&self, task: &TaskId, grpc_address: &str) -> Result<StarAddress, Problem> {
        let Some(entry) = self.entry(grpc_address) else {
            let hint = self.near_miss(grpc_address).map_or(String::new(), |near| {
                format!(
                    "; line {} has `{}`, but keys must match byte for byte",
                    near.line, near.key
                )
            });
            let job = &task.job;
            return Err(Problem::whole_file(
                format!("no line for {task}"),
                format!(
                    "Star ip and port not found for job name: {job}. Write `{grpc_address}=star_host:star_port`{hint}"
                ),
            ));
        };
        match StarAddress::parse(&entry.value) {
            Ok((star, _)) => Ok(star),
            Err(wanted) => {
                let column = entry.key.chars().count() + 2;
                Err(Problem::at(
                    entry.line,
                    column,
                    entry.value.trim_end(),
                    wanted,
                ))
            }
        }
    }

    fn oddities(&self, grpc_addresses: &HashSet<&str>) -> Vec<Problem> {
        let mut odd = Vec::new();
        for (index, entry) in self.entries.iter().enumerate() {
            let counts = self.by_key.get(&entry.key) == Some(&index);
            let is_used = grpc_addresses.contains(entry.key.as_str());
            let note = |wanted: String| Problem::at(entry.line, 1, &entry.key, wanted);
            if !counts {
                let line = self.entry(&entry.key).map_or(0, |last| last.line);
                odd.push(note(format!(
                    "remove one of the lines; line {line} has the same key and counts"
                )));
            } else if entry.key.starts_with('#') {
                odd.push(note(
                    "write comments without `=`; this line counts as an entry".to_owned(),
                ));
            } else if entry.key.trim() != entry.key {
                odd.push(note(format!("write no spaces around `=`: `{FORM}`")));
            } else if !is_used {
                odd.push(note(
                    "no task of the cluster has this gRPC address; remove the line if none shall"
                        .to_owned(),
                ));
            }
            if is_used
                && counts
                && let Ok((_, Some(oddity))) = StarAddress::parse(&entry.value)
            {
                odd.push(Problem::at(entry.line, 0, entry.value.trim_end(), oddity));
            }
        }
        odd
    }

    /// An entry that was probably meant for a gRPC address that has none.
    fn near_miss(&self, grpc_address: &str) -> Option<&Entry> {
        let is_local = |host: &str| host == "localhost" || host.starts_with("127.");
        let (host, port) = grpc_address.split_once(':')?;
        self.entries.iter().find(|entry| {
            let key = entry.key.trim();
            let same_but_local = key.split_once(':').is_some_and(|(other, other_port)| {
                other_port == port && is_local(host) && is_local(other)
            });
            key.eq_ignore_ascii_case(grpc_address) || same_but_local
        })
    }
}
