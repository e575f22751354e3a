"""Names of the protocol, addresses, and the ports that tasks listen on."""

import socket
import subprocess

import pytest

from cluster import Cluster, Network
from ports import free_ports

pytestmark = pytest.mark.processes


def train(cluster):
    """Trains a little with one ps; returns what the worker counted, and the ps."""
    (server,) = cluster.serve("ps")
    counters = cluster.start("worker", 0, "train.py", 10).result()["counters"]
    assert counters["received_tensors"] > 0
    assert counters["fallback_tensors_unreachable"] == counters["fallback_tensors_no_plugin"] == 0
    return server


@pytest.mark.parametrize("protocol", ["star_server", "star_server_lite", "star_server_v2"])
def test_names_of_deeprec_mean_star(protocol):
    with Cluster(protocol, ps=1, worker=1) as cluster:
        train(cluster)


@pytest.mark.smoke
def test_tasks_with_ipv6_addresses_speak_star():
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError as error:
            pytest.skip(f"no IPv6 here: {error}")
    with Cluster("grpc++", host="[::1]", ps=1, worker=1) as cluster:
        train(cluster)
        cluster.tasks["worker", 0].wait_for("come from its star port [::1]:")


def test_tasks_whose_names_have_ipv6_addresses_alone_speak_star():
    with Network() as network:
        if network.reason:
            pytest.skip(network.reason)
        for number, job in enumerate(["ps", "worker"], 1):
            try:
                network.name(f"{job}-0.test", f"fd77::{number}")
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no IPv6 here: {error}")
        # Memory that two tasks share needs no network.
        with Cluster("grpc++", {"GRPCXX_SHM": "off"}, network, ps=1, worker=1) as cluster:
            for job, tasks in cluster.spec.items():
                tasks[0] = tasks[0].replace("127.0.0.1", f"{job}-0.test")
            train(cluster)
            cluster.tasks["worker", 0].wait_for("come from its star port ps-0.test:")


@pytest.mark.smoke
def test_a_star_port_follows_the_grpc_port_by_rule():
    with Cluster("grpc++", {"GRPCXX_STAR_PORT_OFFSET": "500"}, ps=1, worker=1) as cluster:
        # Ports that the system gives out begin at 32768.
        cluster.spec = {"ps": ["127.0.0.1:21321"], "worker": ["127.0.0.1:21322"]}
        server = train(cluster)
        server.wait_for("grpc++ on star port 21821")


def test_a_rule_that_leads_beyond_all_ports_is_an_error():
    port = free_ports(1)[0]
    offset = 65534
    with Cluster("grpc++", {"GRPCXX_STAR_PORT_OFFSET": str(offset)}, ps=1) as cluster:
        cluster.spec = {"ps": [f"127.0.0.1:{port}"]}
        task = cluster.start("ps", 0)
        task.process.wait(timeout=60)
        text = f"gRPC port {port} plus GRPCXX_STAR_PORT_OFFSET={offset} is more than 65535"
        assert text in task.output()
