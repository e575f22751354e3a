//! What the processes of a job are told about each other.

use std::fmt::Write as _;
use std::net::IpAddr;

use grpcxx_runtime::cluster::TaskId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Roles;

/// Where one rank is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// Its host.
    pub ip: IpAddr,
    /// Its gRPC port.
    pub grpc: u16,
    /// Its star port.
    pub star: u16,
}

/// All tasks with their addresses, by rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    roles: Roles,
    addresses: Vec<Address>,
}

impl Plan {
    /// Joins roles and addresses; `None` if their numbers differ.
    pub fn new(roles: Roles, addresses: Vec<Address>) -> Option<Self> {
        (addresses.len() == roles.size() as usize).then_some(Self { roles, addresses })
    }

    /// The roles.
    pub fn roles(&self) -> Roles {
        self.roles
    }

    /// The cluster as `--cluster-spec` takes it.
    pub fn cluster_spec(&self) -> String {
        let jobs = self.jobs();
        let jobs = jobs
            .iter()
            .map(|(job, tasks)| format!("{job}|{}", tasks.join(";")));
        jobs.collect::<Vec<_>>().join(",")
    }

    /// The content of the endpoint map.
    pub fn endpoint_map(&self) -> String {
        self.addresses
            .iter()
            .fold(String::new(), |mut map, address| {
                let (grpc, star) = (
                    socket(address.ip, address.grpc),
                    socket(address.ip, address.star),
                );
                // Writing to a String cannot fail.
                let _ = writeln!(map, "{grpc}={star}");
                map
            })
    }

    /// The hosts of all tasks.
    pub fn hosts(&self) -> impl Iterator<Item = String> {
        self.addresses.iter().map(|address| address.ip.to_string())
    }

    /// The value of `TF_CONFIG` for a rank.
    pub fn tf_config(&self, rank: u32) -> String {
        let TaskId { job, index } = self.roles.task(rank);
        let cluster: Map<String, Value> = self
            .jobs()
            .into_iter()
            .map(|(job, tasks)| (job, Value::from(tasks)))
            .collect();
        json!({ "cluster": cluster, "task": { "type": job, "index": index } }).to_string()
    }

    /// The gRPC addresses of each job, in the order of ranks.
    fn jobs(&self) -> Vec<(String, Vec<String>)> {
        let mut jobs: Vec<(String, Vec<String>)> = Vec::new();
        for (rank, address) in self.addresses.iter().enumerate() {
            let task = self.roles.task(rank as u32);
            let grpc = socket(address.ip, address.grpc);
            match jobs.last_mut() {
                Some((job, tasks)) if *job == task.job => tasks.push(grpc),
                Some(_) | None => jobs.push((task.job, vec![grpc])),
            }
        }
        jobs
    }
}

fn socket(ip: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(ip, port).to_string()
}

#[cfg(test)]
mod tests {
    use grpcxx_runtime::cluster::{ClusterSpec, TfConfig};

    use super::*;

    #[test]
    fn servers_read_back_what_they_are_told() {
        let address = |last, grpc| Address {
            ip: IpAddr::from([10, 0, 0, last]),
            grpc,
            star: grpc + 1,
        };
        let roles = Roles::new(3, 1, false).unwrap();
        let plan = Plan::new(roles, vec![address(1, 5), address(1, 7), address(2, 5)]).unwrap();
        assert_eq!(
            plan.cluster_spec(),
            "ps|10.0.0.1:5,worker|10.0.0.1:7;10.0.0.2:5"
        );
        let told = TfConfig::parse(&plan.tf_config(2)).unwrap();
        assert_eq!(told.task, Some(TaskId::new("worker", 1)));
        assert_eq!(
            told.cluster,
            Some(ClusterSpec::parse(&plan.cluster_spec()).unwrap())
        );
        assert_eq!(
            plan.endpoint_map(),
            "10.0.0.1:5=10.0.0.1:6\n10.0.0.1:7=10.0.0.1:8\n10.0.0.2:5=10.0.0.2:6\n"
        );
        assert_eq!(Plan::new(roles, vec![address(1, 5)]), None);
    }
}
