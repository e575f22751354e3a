"""`python -m grpcxx doctor` in processes of its own."""

import json
import os
import subprocess
import sys

import pytest

from grpcxx import doctor


def run(*arguments, **variables):
    finished = subprocess.run(
        [sys.executable, "-m", "grpcxx", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return finished


def findings(*arguments, **variables):
    finished = run("doctor", "--json", "--no-tensorflow", *arguments, **variables)
    assert finished.stderr == ""
    report = json.loads(finished.stdout)
    assert finished.returncode == (1 if report["wrong"] else 0)
    return {finding["subject"]: finding for finding in report["findings"]}


def test_the_report_has_a_line_for_each_part():
    found = findings()
    subjects = "grpcxx Python NumPy engine TensorFlow sockets threads CPUs memory RDMA variables".split()
    assert set(subjects) | {"shared memory", "huge pages", "endpoint map"} <= set(found)
    assert all(finding["state"] in ("ok", "note", "wrong") for finding in found.values())
    assert all(finding["advice"] for finding in found.values() if finding["state"] == "wrong")
    assert found["engine"]["value"].startswith("0.1.0 at /")


def test_the_text_says_at_its_end_whether_all_is_well(tmp_path):
    good = run("doctor", "--no-tensorflow")
    if good.returncode == 0:
        assert good.stdout.endswith("All is well.\n")
    bad = run("doctor", "--no-tensorflow", "--endpoint-map", str(tmp_path / "none"))
    assert bad.returncode == 1
    assert "WRONG endpoint map" in bad.stdout and "->" in bad.stdout


def test_an_endpoint_map_is_read(tmp_path):
    path = tmp_path / ".endpoint_map"
    path.write_text("localhost:2222=localhost:12222\nlocalhost:2223=localhost:12223\n")
    assert findings("--endpoint-map", str(path))["endpoint map"]["value"] == f"{path} with 2 tasks"
    found = findings(TF_SEASTAR_ENDPOINT_MAP_PATH=str(tmp_path))["endpoint map"]
    assert "with 2 tasks" in found["value"] and found["state"] == "ok"


def test_star_ports_of_outgoing_connections_are_told(tmp_path):
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        first, _ = file.read().split()
    path = tmp_path / ".endpoint_map"
    path.write_text(f"localhost:2222=localhost:{first}\n")
    found = findings("--endpoint-map", str(path))["star ports"]
    assert found["state"] == "note" and first in found["value"]
    assert "net.ipv4.ip_local_reserved_ports" in found["advice"]
    path.write_text("localhost:2222=localhost:9\n")
    assert "star ports" not in findings("--endpoint-map", str(path))


def test_a_wrong_endpoint_map_is_wrong(tmp_path):
    path = tmp_path / ".endpoint_map"
    path.write_text("localhost:2222 localhost:12222\n")
    found = findings("--endpoint-map", str(path))["endpoint map"]
    assert found["state"] == "wrong" and found["advice"]


def test_a_wrong_variable_is_wrong():
    found = findings(GRPCXX_SHARDS="many")
    assert found["variables"]["state"] == "wrong"
    assert "GRPCXX_SHARDS" in found["variables"]["value"]
    assert found["GRPCXX_SHARDS"]["value"] == "many"


def test_a_missing_engine_is_wrong(tmp_path):
    found = findings(GRPCXX_LIBRARY=str(tmp_path / "none.so"))
    assert found["engine"]["state"] == "wrong"
    assert "pip install" in found["engine"]["advice"]


def test_a_broken_engine_is_wrong(tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    assert findings(GRPCXX_LIBRARY=str(broken))["engine"]["state"] == "wrong"


def test_wrong_arguments_end_with_64():
    for arguments in ([], ["doctor", "--no-such"], ["nurse"]):
        finished = run(*arguments)
        assert finished.returncode == 64
        assert "usage:" in finished.stderr


def test_small_limits_are_noted():
    (finding,) = doctor._locked_memory(str(64 << 10))
    assert finding.state == "note" and finding.value == "64 KiB" and "ulimit -l" in finding.advice
    (finding,) = doctor._locked_memory("unlimited")
    assert finding.state == "ok"
    (finding,) = doctor._shared_memory(str(64 << 20))
    assert finding.state == "note" and "64 MiB may be used" in finding.value and "--memory" in finding.advice
    (finding,) = doctor._shared_memory("cannot be had: no memfd_create")
    assert finding.state == "note"
    finding = doctor._cpus("2", "0.5")
    assert finding.state == "note" and finding.value.endswith("the time of 0.5") and "polling" in finding.advice
    assert doctor._cpus("2", "2").state == "ok"


@pytest.mark.parametrize("tasks", [["ps-0.train:2222"], {"3": "ps-0.train:2222"}])
def test_a_proxy_that_hides_tasks_is_wrong(monkeypatch, tasks):
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "localhost")
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"ps": tasks, "worker": ["localhost:1", "[2001:db8::1]:2"]}}))
    (finding,) = doctor._proxy()
    assert finding.state == "wrong" and "does not cover ps-0.train,2001:db8::1" in finding.value
    assert finding.advice == "export no_proxy=localhost,ps-0.train,2001:db8::1"
    # gRPC of older TensorFlow knows no ranges.
    monkeypatch.setenv("no_proxy", "localhost,.train,2001:db8::/32")
    assert [finding.advice for finding in doctor._proxy()] == [
        "export no_proxy=localhost,.train,2001:db8::/32,2001:db8::1"
    ]
    monkeypatch.setenv("no_proxy", "localhost,.train,2001:db8::1")
    assert list(doctor._proxy()) == []
    monkeypatch.setenv("TF_CONFIG", "{")
    assert list(doctor._proxy()) == []


@pytest.mark.parametrize("builds, state", [((), "wrong"), (("2.1.0",), "wrong"), (("2.99.0",), "ok")])
def test_a_tensorflow_without_a_build_is_wrong(monkeypatch, tmp_path, builds, state):
    for version in builds:
        (tmp_path / f"libgrpcxx_tensorflow_{version}.so").touch()
    loader = tmp_path / "grpcxx_loader.so"
    loader.touch()
    monkeypatch.setattr(doctor, "PLUGIN_FOLDER", tmp_path)
    monkeypatch.setattr(doctor, "LOADER", loader)
    monkeypatch.setattr(doctor, "_tensorflow_version", lambda: "2.99.0")
    found = {finding.subject: finding for finding in doctor._tensorflow(False)}
    assert found["plugin"].state == state
    if state == "wrong":
        assert "pip install" in found["plugin"].advice


def test_the_policy_in_force_is_told_and_the_token_is_not():
    found = findings(GRPCXX_TOKEN="the key of this test alone", GRPCXX_ALLOW="10.0.0.0/8")
    policy = "allow=10.0.0.0/8 token=set admin=none members=none others=nothing"
    assert found["policy"]["value"] == policy
    assert found["GRPCXX_TOKEN"]["value"] == "(not shown)"


@pytest.mark.parametrize(
    "tensorflow, protobuf, state",
    [("2.20.0", "7.35.1", "wrong"), ("2.20.0", "5.29.5", "ok"), ("2.21.0", "7.35.1", "ok")],
)
def test_a_protobuf_that_tensorflow_2_20_cannot_work_with_is_wrong(monkeypatch, tensorflow, protobuf, state):
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda _: protobuf)
    (found,) = doctor._protobuf(tensorflow)
    assert (found.subject, found.state) == ("protobuf", state)
    assert (found.advice == "pip install 'protobuf<6'") == (state == "wrong")
