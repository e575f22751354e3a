//! Where each task of a cluster speaks gRPC and where it speaks star.

use std::path::{Path, PathBuf};

use grpcxx_runtime::cluster::{ClusterSpec, TaskId};
use grpcxx_runtime::endpoint_map::{EndpointMap, EndpointMapError, search, star_port};

/// The tasks of a cluster with both of their addresses, in the order of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    tasks: Vec<TaskAddresses>,
    source: MapSource,
}

/// One task and where it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskAddresses {
    /// The task.
    pub task: TaskId,
    /// `host:port` of its gRPC endpoint, as in the cluster spec.
    pub grpc: String,
    /// `host:port` of its star port.
    pub star: String,
    /// The port in `star`.
    pub star_port: u16,
}

/// What joins gRPC and star addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapSource {
    /// This endpoint map.
    File(PathBuf),
    /// A map that another task has told.
    Told,
    /// No map: star ports are gRPC ports plus this number.
    PortRule {
        /// The number.
        offset: u16,
    },
}

impl Topology {
    /// Finds the star address of every task: in the map at `map`, else in the one in `directory`,
    /// else in the one in the working directory, else, if nobody named a map, by adding
    /// `star_port_offset` to the gRPC ports.
    ///
    /// # Errors
    /// A map that was named is not there, a map is wrong or lacks a task, or the rule has no port
    /// for one.
    pub fn find(
        cluster: &ClusterSpec,
        map: Option<&Path>,
        directory: Option<&Path>,
        star_port_offset: u16,
    ) -> Result<Self, EndpointMapError> {
        let is_named = map.is_some() || directory.is_some();
        match EndpointMap::read(&search(map, directory)) {
            Ok(map) => Self::from_map(cluster, &map, MapSource::File(map.path().to_owned())),
            Err(EndpointMapError::Missing { .. }) if !is_named => {
                let map = EndpointMap::generate(cluster, |_, _, grpc_port| {
                    star_port(grpc_port, star_port_offset)
                })?;
                let source = MapSource::PortRule {
                    offset: star_port_offset,
                };
                Self::from_map(cluster, &map, source)
            }
            Err(error) => Err(error),
        }
    }

    /// Takes the star address of every task from the text of an endpoint map that was told.
    ///
    /// # Errors
    /// The map is wrong or lacks a task.
    pub fn told(cluster: &ClusterSpec, map: &str) -> Result<Self, EndpointMapError> {
        let map = EndpointMap::parse(Path::new("what was told"), map.as_bytes())?;
        Self::from_map(cluster, &map, MapSource::Told)
    }

    /// All tasks.
    pub fn tasks(&self) -> &[TaskAddresses] {
        &self.tasks
    }

    /// The tasks of one job, in the order of their indices.
    pub fn job<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a TaskAddresses> {
        self.tasks
            .iter()
            .filter(move |known| known.task.job == name)
    }

    /// One task.
    pub fn task(&self, task: &TaskId) -> Option<&TaskAddresses> {
        self.tasks.iter().find(|known| known.task == *task)
    }

    /// What joined the addresses.
    pub fn source(&self) -> &MapSource {
        &self.source
    }

    fn from_map(
        cluster: &ClusterSpec,
        map: &EndpointMap,
        source: MapSource,
    ) -> Result<Self, EndpointMapError> {
        let tasks = map
            .star_addresses(cluster)?
            .into_iter()
            .zip(cluster.tasks())
            .map(|((task, star), (_, grpc))| TaskAddresses {
                task,
                grpc: grpc.to_owned(),
                star_port: star.port,
                star: star.to_string(),
            })
            .collect();
        Ok(Self { tasks, source })
    }
}

impl std::fmt::Display for MapSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Told => f.write_str("told by another task"),
            Self::PortRule { offset } => write!(f, "no map, gRPC ports + {offset}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_read_and_the_rule_stands_in_only_if_nobody_named_one() {
        let folder = tempfile::tempdir().unwrap();
        let cluster = ClusterSpec::parse("ps|a:1000;b:1000,worker|c:1000").unwrap();
        let path = folder.path().join("map");
        std::fs::write(&path, "a:1000=a:1\nb:1000=b:2\nc:1000=10.0.0.3:3\n").unwrap();
        let topology = Topology::find(&cluster, Some(&path), None, 7).unwrap();
        let stars: Vec<&str> = topology.job("ps").map(|task| task.star.as_str()).collect();
        assert_eq!(stars, ["a:1", "b:2"]);
        let worker = topology.task(&TaskId::new("worker", 0)).unwrap();
        assert_eq!((worker.star.as_str(), worker.star_port), ("10.0.0.3:3", 3));

        let missing = folder.path().join("none");
        assert!(Topology::find(&cluster, Some(&missing), None, 7).is_err());
        assert!(Topology::find(&cluster, None, Some(folder.path()), 7).is_err());
        let ruled = Topology::find(&cluster, None, None, 7).unwrap();
        assert_eq!(ruled.tasks()[0].star, "a:1007");
        assert_eq!(ruled.source(), &MapSource::PortRule { offset: 7 });
    }
}
