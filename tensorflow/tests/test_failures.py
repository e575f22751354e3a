"""Training survives what it survives over gRPC: tasks that are killed, peers without the plugin, blocked ports."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import time

import pytest

from cluster import Cluster, Network
from original import OriginalClient
from proxy import Proxy

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("restarts", [pytest.param(1, marks=pytest.mark.smoke), pytest.param(5, marks=pytest.mark.long)])
def test_a_killed_ps_comes_back_and_training_goes_on(tmp_path, restarts):
    environment = {"TEST_CHECKPOINT_DIR": str(tmp_path), "TEST_PAUSE_S": "0.02"}
    steps = 150 * restarts + 100
    with Cluster("grpc++", environment, ps=2, worker=1) as cluster:
        cluster.serve("ps")
        worker = cluster.start("worker", 0, "train.py", steps)
        worker.wait_for("STEP 60 ")
        for restart in range(restarts):
            position = len(worker.lines)
            cluster.tasks["ps", restart % 2].kill()
            cluster.start("ps", restart % 2).wait_for("READY")
            begin = time.monotonic()
            worker.wait_for("STEP ", timeout_s=90, begin=position + 1)
            print(f"restart {restart}: the next steps came after {time.monotonic() - begin:.1f} s")
        result = worker.result(timeout_s=180)
        assert result["ran"] == steps
        # What was applied after the last checkpoint is lost with the ps; nothing is applied twice.
        assert result["applied"] == result["global_step"] <= steps
        assert result["counters"]["receives_open"] == 0


def test_a_killed_worker_comes_back():
    with Cluster("grpc++", {"TEST_PAUSE_S": "0.02"}, ps=1, worker=2) as cluster:
        (server,) = cluster.serve("ps")
        chief = cluster.start("worker", 0, "train.py", 300)
        other = cluster.start("worker", 1, "train.py", 1000)
        other.wait_for("STEP 40 ")
        other.kill()
        again = cluster.start("worker", 1, "train.py", 60)
        assert chief.result()["ran"] == 300
        assert again.result()["ran"] == 60
        counters = server.ask("counters")
        assert counters["receives_open"] == counters["tensors_lent"] == 0


def steps_with_a_dead_shard(dead):
    """How steps of a worker end, with its counters, once a shard of the engine of `dead` has panicked."""
    # A shard can lose its epoll; a ring is registered with its thread, and stays.
    with Cluster("grpc++", {"GRPCXX_SHM": "off", "GRPCXX_DRIVER": "epoll"}, ps=1, worker=1) as cluster:
        (server,) = cluster.serve("ps")
        worker = cluster.start("worker", 0, "steps.py", 7)
        worker.wait_for("STEPS")
        task = cluster.tasks[dead, 0]
        port = re.search(r"star port (\d+),", task.wait_for("on star port"))[1]
        if dead == "ps":
            server.ask(f"kill shard {port}")
            task.wait_for("the engine ends")
        worker.process.stdin.write(f"kill shard {port}\n" if dead == "worker" else "go on\n")
        worker.process.stdin.flush()
        result = worker.result()
        task.wait_for("shard `grpcxx-0` panicked")
        return result["ends"], result["counters"], worker


def test_each_step_of_a_task_whose_shard_has_died_ends_with_an_error_that_names_it():
    ends, counters, _ = steps_with_a_dead_shard("worker")
    for end in ends:
        assert "shard `grpcxx-0` panicked" in end["error"], end
        assert "the engine is dead, start the process again" in end["error"], end
        assert end["seconds"] < 5, end
    assert len(ends) > 10
    assert counters["receives_open"] == 0


def test_steps_go_on_over_grpc_once_a_shard_of_the_ps_has_died():
    ends, counters, worker = steps_with_a_dead_shard("ps")
    failed = [end for end in ends if end["error"]]
    assert len(failed) <= 1 and all("was lost" in end["error"] for end in failed), failed
    assert all(end["seconds"] < 10 for end in ends)
    assert ends[-1]["value"] == 2000.0
    assert counters["fallback_tensors_unreachable"] > 0
    assert counters["receives_open"] == 0
    worker.wait_for("come over gRPC, because its star port")


@pytest.mark.parametrize("protocol", [pytest.param("grpc", marks=pytest.mark.long), "grpc++"])
def test_a_network_cut_for_five_seconds(protocol):
    # Memory that two tasks share is not cut with the network.
    environment = {"TEST_PAUSE_S": "0.02", "GRPCXX_SHM": "off"}
    with Network() as network:
        if network.reason:
            pytest.skip(network.reason)
        with Cluster(protocol, environment, network, ps=2, worker=1) as cluster:
            cluster.serve("ps")
            worker = cluster.start("worker", 0, "train.py", 200)
            worker.wait_for("STEP 60 ")
            network.cut()
            begin, position = time.monotonic(), len(worker.lines)
            time.sleep(5)
            assert len(worker.lines) <= position + 1, "the network was not cut"
            network.mend()
            worker.wait_for("STEP ", timeout_s=90, begin=position + 1)
            print(f"{protocol}: the next steps came {time.monotonic() - begin - 5:.1f} s after the cut was over")
            result = worker.result()
            assert result["ran"] == result["applied"] == result["global_step"] == 200
            if protocol == "grpc++":
                assert result["counters"]["receives_open"] == 0
                assert result["counters"]["received_tensors"] > 200


@pytest.mark.parametrize("protocol", ["grpc", "grpc++"])
@pytest.mark.long
def test_a_ps_that_moves_is_found_again(protocol):
    # It was restarted on another machine, and its name has followed it.
    environment = {"TEST_PAUSE_S": "0.02", "GRPCXX_SHM": "off"}
    with Network() as network:
        if network.reason:
            pytest.skip(network.reason)
        network.name("ps-0.test", "10.77.0.1")
        network.name("worker-0.test", "10.77.0.9")
        with Cluster(protocol, environment, network, ps=1, worker=1) as cluster:
            for job, task in cluster.spec.items():
                task[0] = task[0].replace("127.0.0.1", f"{job}-0.test")
            cluster.serve("ps")
            worker = cluster.start("worker", 0, "train.py", 2000)
            worker.wait_for("STEP 60 ")
            cluster.tasks["ps", 0].kill()
            network.name("ps-0.test", "10.77.0.2")
            again = cluster.start("ps", 0)
            again.wait_for("READY")
            position = len(worker.lines)
            begin = time.monotonic()
            worker.wait_for("STEP ", timeout_s=120, begin=position)
            print(f"{protocol}: the next steps came after {time.monotonic() - begin:.1f} s")
            if protocol == "grpc":
                return
            until = time.monotonic() + 90
            while not again.ask("counters")["served_tensors"]:
                assert time.monotonic() < until, "its tensors still go over gRPC"
                time.sleep(0.5)


@pytest.mark.smoke
def test_a_peer_without_the_plugin_is_served_over_grpc():
    with Cluster("grpc++", ps=1, worker=1) as cluster:
        server = cluster.start("ps", 0, protocol="grpc", environment={"TEST_WITHOUT_PLUGIN": "1"})
        server.wait_for("READY")
        worker = cluster.start("worker", 0, "train.py", 30)
        result = worker.result()
        assert result["ran"] == 30
        assert result["counters"]["received_tensors"] == 0
        assert result["counters"]["fallback_tensors_no_plugin"] > 30
        told = [line for line in worker.lines if "come over gRPC, because it was not started" in line]
        assert len(told) == 1, "the reason is told once for each peer"


def test_a_blocked_star_port_falls_back_to_grpc(tmp_path):
    with Cluster("grpc++", ps=1, worker=1) as cluster:
        ps, worker = cluster.spec["ps"][0], cluster.spec["worker"][0]
        folders = {}
        # Each task knows its own port; the worker's map sends it to a port of the ps that nobody listens on.
        for name, wrong in [("ps", {}), ("worker", {ps: "127.0.0.1:1"})]:
            folders[name] = tmp_path / name
            folders[name].mkdir()
            stars = {ps: "127.0.0.1:" + free(), worker: "127.0.0.1:" + free(), **wrong}
            lines = [f"{grpc}={star}" for grpc, star in stars.items()]
            (folders[name] / ".endpoint_map").write_text("\n".join(lines) + "\n")
        start = lambda job, *rest: cluster.start(  # noqa: E731
            job, 0, *rest, environment={"TF_SEASTAR_ENDPOINT_MAP_PATH": str(folders[job])}
        )
        start("ps").wait_for("READY")
        task = start("worker", "train.py", 30)
        result = task.result()
        assert result["ran"] == 30
        assert result["counters"]["fallback_tensors_unreachable"] > 30
        assert len([line for line in task.lines if "come over gRPC, because its star port" in line]) == 1


def with_star_ports(cluster, folder, stars):
    """Starts the ps and a worker that trains; the worker finds these tasks at these star ports instead of theirs."""
    own = {address: "127.0.0.1:" + free() for addresses in cluster.spec.values() for address in addresses}
    for name, map_of in [("ps", own), ("worker", {**own, **stars})]:
        (folder / name).mkdir()
        (folder / name / ".endpoint_map").write_text("".join(f"{grpc}={star}\n" for grpc, star in map_of.items()))
    environment = {name: {"TF_SEASTAR_ENDPOINT_MAP_PATH": str(folder / name)} for name in ("ps", "worker")}
    cluster.serve("ps", environment=environment["ps"])
    return own, lambda steps: cluster.start("worker", 0, "train.py", steps, environment=environment["worker"])


def test_a_star_port_that_is_closed_is_known_before_one_that_is_silent(tmp_path):
    with Cluster("grpc++", ps=2, worker=1) as cluster, socket.create_server(("127.0.0.1", 0)) as silent:
        closed, quiet = cluster.spec["ps"]
        stars = {closed: "127.0.0.1:1", quiet: f"127.0.0.1:{silent.getsockname()[1]}"}
        _, start = with_star_ports(cluster, tmp_path, stars)
        worker = start(30)
        text = "task:%d come over gRPC, because its star port"
        assert "refused" in worker.wait_for(text % 0)
        # The silent one, which was asked at the same time, is waited for; the closed one is not.
        time.sleep(1)
        assert not any(text % 1 in line for line in worker.lines)
        worker.wait_for(text % 1)
        assert worker.result()["ran"] == 30


def test_a_star_port_that_opens_late_is_found(tmp_path):
    with Cluster("grpc++", {"TEST_PAUSE_S": "0.05", "GRPCXX_SHM": "off"}, ps=1, worker=1) as cluster:
        port = int(free())
        ps = cluster.spec["ps"][0]
        own, start = with_star_ports(cluster, tmp_path, {ps: f"127.0.0.1:{port}"})
        worker = start(5000)
        worker.wait_for("come over gRPC, because its star port")
        worker.wait_for("STEP 20 ")
        with contextlib.closing(Proxy(own[ps], port)):
            worker.wait_for(f"come from its star port 127.0.0.1:{port}", timeout_s=15)
            begin = len(worker.lines)
            worker.wait_for("STEP ", begin=begin)


@pytest.mark.parametrize("end", ["exit", "Ctrl-C"])
def test_an_original_that_asks_sees_the_end_of_a_task(end):
    with Cluster("grpc++", ps=1) as cluster:
        (server,) = cluster.serve("ps")
        port = re.search(r"star port (\d+)", server.wait_for("grpc++ on star port")).group(1)
        original = OriginalClient(f"127.0.0.1:{port}")
        original.until_asked(10)
        if end == "exit":
            server.process.stdin.write("end\n")
            server.process.stdin.flush()
        else:
            server.process.send_signal(signal.SIGINT)
        original.until_ended()
        assert not original.was_reset
        assert server.process.wait(60) == (0 if end == "exit" else -signal.SIGINT)


def test_the_endpoint_map_is_honoured(tmp_path):
    with Cluster("grpc++", {"TF_SEASTAR_ENDPOINT_MAP_PATH": str(tmp_path)}, ps=1, worker=1) as cluster:
        stars = {cluster.spec[job][0]: "127.0.0.1:" + free() for job in ("ps", "worker")}
        (tmp_path / ".endpoint_map").write_text("".join(f"{grpc}={star}\n" for grpc, star in stars.items()))
        (server,) = cluster.serve("ps")
        worker = cluster.start("worker", 0, "train.py", 30)
        assert worker.result()["counters"]["received_tensors"] > 30
        port = stars[cluster.spec["ps"][0]].rpartition(":")[2]
        server.wait_for(f"grpc++ on star port {port}, peers by {tmp_path}/.endpoint_map")
        worker.wait_for("come from its star port " + stars[cluster.spec["ps"][0]])


def test_a_map_without_this_task_is_an_error(tmp_path):
    (tmp_path / ".endpoint_map").write_text("127.0.0.1:1=127.0.0.1:2\n")
    with Cluster("grpc++", {"TF_SEASTAR_ENDPOINT_MAP_PATH": str(tmp_path)}, ps=1, worker=1) as cluster:
        task = cluster.start("ps", 0)
        task.process.wait(timeout=60)
        assert cluster.spec["ps"][0] in task.output()


# Each thread draws the request ids that the first one drew.
SAME_IDS = """
#include <cstdint>
namespace tsl::random { uint64_t ThreadLocalNew64() { static thread_local uint64_t drawn = 1; return ++drawn; } }
"""


def test_threads_that_draw_the_same_request_ids(tmp_path):
    source, library = tmp_path / "same_ids.cc", tmp_path / "same_ids.so"
    source.write_text(SAME_IDS)
    subprocess.run(["c++", "-std=c++17", "-shared", "-fPIC", "-o", library, source], check=True)
    for protocol in ("grpc", "grpc++"):
        with Cluster(protocol, {"LD_PRELOAD": str(library)}, ps=1, worker=1) as cluster:
            cluster.serve("ps")
            worker = cluster.start("worker", 0, "two_parts.py", 50)
            if protocol == "grpc":
                worker.wait_for("RunGraph (Worker) request was received twice")
            else:
                assert worker.result()["steps"] == 50


@pytest.mark.long
def test_many_steps_leave_nothing_behind():
    steps = int(os.environ.get("TEST_LEAK_STEPS", "10000"))
    with Cluster("grpc++", ps=1, worker=1) as cluster:
        (server,) = cluster.serve("ps")
        worker = cluster.start("worker", 0, "leak.py", steps)
        worker.wait_for("WARM", timeout_s=300)
        before = server.ask("counters")
        result = worker.result(timeout_s=540)
        after = server.ask("counters")
        grown = {"ps": after["resident_bytes"] - before["resident_bytes"], "worker": result["grown_bytes"]}
        print(f"{steps} steps: grown by {grown}; {after}")
        assert after["tensors_lent"] == after["receives_open"] == 0
        assert result["counters"]["receives_open"] == result["counters"]["tensors_lent"] == 0
        assert result["cancelled_steps"] > 10
        for task, bytes_grown in grown.items():
            assert bytes_grown < 64 << 20, task


def free():
    from ports import free_ports

    return str(free_ports(1)[0])
