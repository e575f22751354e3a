use std::fmt;
use std::str::FromStr;

use grpcxx_rpc::OtherTask;
use grpcxx_transport::PeerName;

use super::{ClusterError, JOB_NAME_BYTES_MAX};

/// A task of a cluster. Its text is TensorFlow's target, `/job:ps/replica:0/task:1`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    /// Name of the job.
    pub job: String,
    /// Index in the job.
    pub index: u32,
}

impl TaskId {
    /// The task of this job with this index.
    pub fn new(job: impl Into<String>, index: u32) -> Self {
        Self {
            job: job.into(),
            index,
        }
    }

    /// The task as certificates name it behind their cluster, `ps/1`.
    pub fn in_certificates(&self) -> String {
        format!("{}/{}", self.job, self.index)
    }

    /// Checks that a certificate with this name is that of this task.
    ///
    /// # Errors
    /// It is that of another one.
    pub fn check_name(&self, name: &PeerName) -> Result<(), Box<OtherTask>> {
        if (self.job.as_str(), self.index) == (&*name.job, name.index) {
            return Ok(());
        }
        Err(Box::new(OtherTask {
            called: self.in_certificates().into(),
            found: name.to_string().into(),
        }))
    }

    /// Whether this names a task of a cluster.
    pub fn is_of_cluster(&self) -> bool {
        !OTHER_JOBS.contains(&self.job.as_str())
    }

    /// The full name of a device of this task, `/job:ps/replica:0/task:1/device:CPU:0`.
    pub fn device(&self, kind: &str, number: u32) -> String {
        format!("{self}/device:{kind}:{number}")
    }
}

/// The jobs of processes that are no tasks of a cluster: those that are alone, as in TensorFlow,
/// the ranks of a group in Python, and the program `grpcxx`.
const OTHER_JOBS: [&str; 3] = ["localhost", "rank", TOOL_JOB];

/// The job of the program `grpcxx`.
pub const TOOL_JOB: &str = "tool";

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/job:{}/replica:0/task:{}", self.job, self.index)
    }
}

impl FromStr for TaskId {
    type Err = ClusterError;

    fn from_str(text: &str) -> Result<Self, ClusterError> {
        let wrong = |wanted: &str| ClusterError::new("a target".to_owned(), text, wanted);
        let Some((job, index)) = text
            .strip_prefix("/job:")
            .and_then(|rest| rest.split_once("/replica:0/task:"))
        else {
            return Err(wrong("write `/job:NAME/replica:0/task:INDEX`"));
        };
        check_job_name(job).map_err(|wanted| wrong(&wanted))?;
        let is_number = !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit());
        match index.parse() {
            Ok(index) if is_number => Ok(Self::new(job, index)),
            _ => Err(wrong(
                "write the task's index as a number, such as `/task:0`",
            )),
        }
    }
}

/// Says what to write if `name` cannot be part of a device's name.
pub(super) fn check_job_name(name: &str) -> Result<(), String> {
    if name.len() > JOB_NAME_BYTES_MAX {
        return Err(format!(
            "a job's name has at most {JOB_NAME_BYTES_MAX} bytes"
        ));
    }
    check_job_letters(name)
}

/// Whether a name may stand for a job in names of tasks and of devices.
pub(crate) fn check_job_letters(name: &str) -> Result<(), String> {
    let begins_well = name.starts_with(|first: char| first.is_ascii_alphabetic());
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    if begins_well && name.chars().all(is_letter) {
        Ok(())
    } else {
        Err("a job's name begins with a letter and goes on with letters, digits and `_`".to_owned())
    }
}
