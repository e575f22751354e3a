//! Which tasks there are, and at which addresses.

mod error;
mod json;
mod protocol;
mod reach;
mod task;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::Ipv6Addr;

pub use error::ClusterError;
pub use json::TfConfig;
pub use protocol::{Protocol, UnknownProtocol};
pub(crate) use reach::look_up;
pub use reach::{listen_ip, listen_ip_by, reachable, source_towards};
pub(crate) use task::check_job_letters;
pub use task::{TOOL_JOB, TaskId};

/// The jobs of a cluster, in the order in which they were given, with the gRPC address of each
/// task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterSpec {
    jobs: Vec<Job>,
}

/// The tasks of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    name: String,
    tasks: BTreeMap<u32, String>,
}

/// Most tasks of a cluster; the original counts them in 16 bits.
pub const TASKS_MAX: usize = 65_535;
/// Longest text of a cluster, in bytes.
pub const TEXT_BYTES_MAX: usize = 32 << 20;
/// Longest name of a job, in bytes.
pub const JOB_NAME_BYTES_MAX: usize = 255;
/// Longest host name, in bytes.
pub const HOST_BYTES_MAX: usize = 253;
/// Longest address of a task, in bytes: host, colon, port.
pub const ADDRESS_BYTES_MAX: usize = HOST_BYTES_MAX + 1 + 5;

impl ClusterSpec {
    /// Reads TensorFlow's `job|host:port;host:port,job2|host:port`.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place.
    pub fn parse(text: &str) -> Result<Self, ClusterError> {
        check_length(text)?;
        let mut cluster = Self::default();
        for (position, part) in text.trim().split(',').enumerate() {
            let place = format!("job {} of the cluster spec", position + 1);
            let Some((name, tasks)) = part.split_once('|') else {
                return Err(ClusterError::new(
                    place,
                    part,
                    "write the job's name, `|`, and its tasks: `ps|host:port;host:port`",
                ));
            };
            if tasks.contains('|') {
                return Err(ClusterError::new(
                    place,
                    part,
                    "separate jobs by `,` and tasks by `;`; `|` stands only behind a job's name",
                ));
            }
            let tasks = (0..).zip(tasks.split(';').map(str::to_owned));
            cluster.add_job(name.to_owned(), tasks)?;
        }
        cluster.check_addresses()?;
        Ok(cluster)
    }

    /// Reads a JSON object: jobs to lists of addresses, or to objects of task index to address.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place.
    pub fn from_json(text: &str) -> Result<Self, ClusterError> {
        check_length(text)?;
        json::cluster(text)
    }

    /// The jobs, in the order in which they were given.
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// All tasks with their addresses, job by job.
    pub fn tasks(&self) -> impl Iterator<Item = (TaskId, &str)> {
        self.jobs.iter().flat_map(|job| {
            job.tasks()
                .map(|(index, address)| (TaskId::new(job.name.clone(), index), address))
        })
    }

    /// The hosts of all tasks, some of them several times.
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        self.tasks().filter_map(|(_, address)| host_of(address))
    }

    /// Number of tasks over all jobs.
    pub fn total_tasks(&self) -> usize {
        self.jobs.iter().map(|job| job.tasks.len()).sum()
    }

    /// The job with this name.
    pub fn job(&self, name: &str) -> Option<&Job> {
        self.jobs.iter().find(|job| job.name == name)
    }

    /// The address of a task.
    pub fn address(&self, task: &TaskId) -> Option<&str> {
        self.job(&task.job)?.address(task.index)
    }

    /// The address of a task that must be there.
    ///
    /// # Errors
    /// It is not: says which are.
    pub fn require(&self, task: &TaskId) -> Result<&str, ClusterError> {
        self.address(task).ok_or_else(|| {
            let known = match self.job(&task.job) {
                Some(job) => format!("job {} has {} tasks", job.name, job.tasks.len()),
                None => {
                    let names: Vec<&str> = self.jobs.iter().map(Job::name).collect();
                    format!("its jobs are {}", names.join(", "))
                }
            };
            ClusterError::new(
                "the cluster spec".to_owned(),
                &task.to_string(),
                &format!("name a task that it has; {known}"),
            )
        })
    }

    fn add_job(
        &mut self,
        name: String,
        tasks: impl IntoIterator<Item = (u32, String)>,
    ) -> Result<(), ClusterError> {
        let place = format!("job {} of the cluster spec", self.jobs.len() + 1);
        task::check_job_name(&name).map_err(|wanted| ClusterError::new(place, &name, &wanted))?;
        if self.job(&name).is_some() {
            return Err(ClusterError::new(
                "the cluster spec".to_owned(),
                &name,
                "name each job once, with all its tasks",
            ));
        }
        let mut total_tasks = self.total_tasks();
        let mut job = Job {
            name,
            tasks: BTreeMap::new(),
        };
        for (index, address) in tasks {
            let place = format!("job {}, task {index}", job.name);
            total_tasks += 1;
            if total_tasks > TASKS_MAX {
                return Err(ClusterError::new(
                    place,
                    &address,
                    &format!("a cluster has at most {TASKS_MAX} tasks"),
                ));
            }
            if let Err(wanted) = split_address(&address) {
                return Err(ClusterError::new(place, &address, &wanted));
            }
            if job.tasks.contains_key(&index) {
                return Err(ClusterError::new(place, &address, "name each task once"));
            }
            job.tasks.insert(index, address);
        }
        if job.tasks.is_empty() {
            return Err(ClusterError::new(
                "the cluster spec".to_owned(),
                &job.name,
                "give each job at least one task",
            ));
        }
        self.jobs.push(job);
        Ok(())
    }

    fn check_addresses(&self) -> Result<(), ClusterError> {
        let mut owners: HashMap<&str, TaskId> = HashMap::with_capacity(self.total_tasks());
        for (task, address) in self.tasks() {
            if let Some(owner) = owners.get(address) {
                return Err(ClusterError::new(
                    format!("job {}, task {}", task.job, task.index),
                    address,
                    &format!("give each task an address of its own; {owner} has this one"),
                ));
            }
            owners.insert(address, task);
        }
        Ok(())
    }
}

impl Job {
    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tasks in the order of their indices, which may have gaps.
    pub fn tasks(&self) -> impl Iterator<Item = (u32, &str)> {
        self.tasks
            .iter()
            .map(|(index, address)| (*index, address.as_str()))
    }

    /// The address of a task.
    pub fn address(&self, index: u32) -> Option<&str> {
        self.tasks.get(&index).map(String::as_str)
    }
}

/// Writes TensorFlow's syntax. It has no place for gaps in the indices.
impl fmt::Display for ClusterSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, job) in self.jobs.iter().enumerate() {
            write!(f, "{}{}|", if position == 0 { "" } else { "," }, job.name)?;
            for (place, address) in job.tasks.values().enumerate() {
                write!(f, "{}{address}", if place == 0 { "" } else { ";" })?;
            }
        }
        Ok(())
    }
}

/// The host of `host:port`, or of `[address]:port` for IPv6.
pub fn host_of(address: &str) -> Option<&str> {
    split_address(address).ok().map(|(host, _)| host)
}

/// The host and the port of `host:port`, or of `[address]:port` for IPv6.
///
/// # Errors
/// What to write instead.
pub(crate) fn split_address(address: &str) -> Result<(&str, u16), String> {
    if address.len() > ADDRESS_BYTES_MAX {
        return Err(format!(
            "an address has at most {ADDRESS_BYTES_MAX} bytes: `host:port`"
        ));
    }
    let (host, port) = split_host(address)?;
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit());
    match port.parse() {
        Ok(port) if port > 0 && is_port => Ok((host, port)),
        _ => Err("write a port from 1 to 65535 behind the colon".to_owned()),
    }
}

/// The host, without brackets, and what stands behind its colon.
pub(crate) fn split_host(address: &str) -> Result<(&str, &str), String> {
    if let Some(rest) = address.strip_prefix('[') {
        return match rest.split_once("]:") {
            Some((host, port)) if host.parse::<Ipv6Addr>().is_ok() => Ok((host, port)),
            _ => Err("write an IPv6 address as `[2001:db8::1]:port`".to_owned()),
        };
    }
    let Some((host, port)) = address.split_once(':') else {
        return Err("write `host:port`, with a port from 1 to 65535".to_owned());
    };
    if port.contains(':') {
        return Err("write `host:port`, and an IPv6 address in brackets: `[::1]:port`".to_owned());
    }
    let is_host = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
    if host.len() > HOST_BYTES_MAX {
        return Err(format!("a host name has at most {HOST_BYTES_MAX} bytes"));
    }
    if host.is_empty() || !host.chars().all(is_host) {
        return Err(
            "write a host name or an IP address before the colon, without spaces".to_owned(),
        );
    }
    Ok((host, port))
}

fn check_length(text: &str) -> Result<(), ClusterError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(ClusterError::new(
            "the cluster spec".to_owned(),
            &format!("{} bytes", text.len()),
            &format!("it has at most {TEXT_BYTES_MAX} bytes"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
