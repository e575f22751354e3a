//! A task with a star port and a gRPC port.

use std::net::SocketAddr;

use grpcxx::server::{Server, ServerOptions};
use grpcxx::topology::Topology;
use grpcxx::{ClusterSpec, Config, TaskId};

use crate::ports::held_address;

/// Starts a task without services, with a variable that is set. Its ports are those of gRPC, star
/// and metrics.
pub(crate) fn start_with(variable: &str, value: &str) -> (Server, [SocketAddr; 3]) {
    let [grpc, star, metrics] = [(); 3].map(|()| held_address());
    let (config, _) =
        Config::read(|name| (name == variable).then(|| value.to_owned()), [""; 0]).unwrap();
    let cluster = ClusterSpec::parse(&format!("ps|{grpc}")).unwrap();
    let topology = Topology::told(&cluster, &format!("{grpc}={star}\n")).unwrap();
    let server = Server::start(ServerOptions {
        config,
        cluster,
        task: TaskId::new("ps", 0),
        protocol: "grpc++".parse().unwrap(),
        topology: Some(topology),
        metrics: Some(metrics),
        model: None,
    });
    (server.unwrap(), [grpc, star, metrics])
}
