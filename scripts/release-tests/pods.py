"""Runs on this host what the pods of deploy/kubernetes would run. Part of scripts/release-tests/kubernetes."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import yaml

MANIFESTS = Path("deploy/kubernetes")
SMALL = {"GRPCXX_SHARDS": "1", "GRPCXX_ARENA_BYTES": "64MiB"}


HELD: list[socket.socket] = []


def documents(name):
    """The documents of a folder by their kind, and its customization."""
    folder = MANIFESTS / name
    customization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    found = {}
    for file in customization["resources"]:
        for document in yaml.safe_load_all((folder / file).read_text()):
            found[document["kind"]] = document
    return found, customization


def free_ports(count):
    """Ports on which the pods can listen, and which nobody else is given while this process lives.

    Sockets that do not listen are bound to them, and share them with listeners that say so before.
    """
    for _ in range(count):
        HELD.append(socket.socket())
        HELD[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        HELD[-1].bind(("", 0))
    return [one.getsockname()[1] for one in HELD[-count:]]


def expect(is_so, what):
    if not is_so:
        sys.exit(f"deploy/kubernetes: {what}")


def servers():
    found, customization = documents("servers")
    service, workload = found["Service"], found["StatefulSet"]
    spec = workload["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    (generated,) = customization["configMapGenerator"]
    name, cluster = generated["literals"][0].split("=", 1)
    job, addresses = cluster.split("|")
    addresses = addresses.split(";")

    expect(container["envFrom"][0]["configMapRef"]["name"] == generated["name"], "the cluster's map has two names")
    expect(spec["serviceName"] == service["metadata"]["name"], "the service of the pods has two names")
    expect(spec["selector"]["matchLabels"] == service["spec"]["selector"], "the service selects other pods")
    expect(len(addresses) == spec["replicas"], f"{len(addresses)} addresses for {spec['replicas']} replicas")
    pods = [f"{workload['metadata']['name']}-{index}.{spec['serviceName']}:2222" for index in range(spec["replicas"])]
    expect(addresses == pods, f"the cluster has {addresses}, the pods are {pods}")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    expect(
        ports == {port["name"]: port["port"] for port in service["spec"]["ports"]}, "service and pods differ in ports"
    )
    expect(ports["grpc"] == 2222 and ports["star"] == 12222, "gRPC is at 2222, and star 10000 above")

    # On this host each task of the command needs ports of its own.
    grpc = free_ports(len(addresses))
    star, metrics = free_ports(len(addresses)), free_ports(len(addresses))
    here = f"{job}|" + ";".join(f"127.0.0.1:{port}" for port in grpc)
    os.makedirs("target/pods", exist_ok=True)
    Path("target/pods/.endpoint_map").write_text(
        "".join(f"127.0.0.1:{one}=127.0.0.1:{other}\n" for one, other in zip(grpc, star))
    )
    index_name = next(entry["name"] for entry in container["env"] if "valueFrom" in entry)
    started = []
    try:
        for index, port in enumerate(metrics):
            arguments = [argument.replace(f"$({name})", here) for argument in container["args"]]
            arguments = [argument.replace(f"0.0.0.0:{ports['metrics']}", f"127.0.0.1:{port}") for argument in arguments]
            variables = {**os.environ, **SMALL, index_name: str(index), "TF_SEASTAR_ENDPOINT_MAP_PATH": "target/pods"}
            started.append(
                subprocess.Popen(["grpcxx-server", *arguments], env=variables, stdout=subprocess.PIPE, text=True)
            )
        for task in started:
            print(task.stdout.readline().strip())
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            path = container[probe]["httpGet"]["path"]
            expect(container[probe]["httpGet"]["port"] == "metrics", f"{probe} asks another port than that of metrics")
            for port in metrics:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                    expect(answer.status == 200, f"{probe} gets {answer.status}")
        print("all probes: 200")
        for task in started:
            task.send_signal(signal.SIGTERM)
        grace = spec["template"]["spec"]["terminationGracePeriodSeconds"]
        codes = [task.wait(grace) for task in started]
        expect(codes == [0] * len(codes), f"the servers end with {codes}")
    finally:
        for task in started:
            task.kill()


def job():
    found, _ = documents("job")
    service, workload = found["Service"], found["Job"]
    spec = workload["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    name = workload["metadata"]["name"]
    command = container["command"]
    flags = command[: command.index("--")]
    port = free_ports(1)[0]
    place = flags[flags.index("--rendezvous") + 1]

    expect(pod["subdomain"] == service["metadata"]["name"], "the service of the pods has two names")
    expect(service["spec"]["selector"] == {"job-name": name}, "the service selects other pods")
    expect(int(flags[flags.index("-n") + 1]) == spec["completions"] == spec["parallelism"], "-n is not the number of pods")
    expect(place.startswith(f"{name}-0.{pod['subdomain']}:"), f"{place} is not the first pod")

    flags = [f"127.0.0.1:{port}" if flag == place else flag for flag in flags]
    ranks = []
    for index in range(spec["completions"]):
        variables = {**os.environ, **SMALL, "JOB_COMPLETION_INDEX": str(index)}
        print_task = ["--", sys.executable, "-c", "import os, json; print(json.loads(os.environ['TF_CONFIG'])['task'])"]
        ranks.append(subprocess.Popen([*flags, *print_task], env=variables, stdout=subprocess.PIPE, text=True))
        time.sleep(0.05)
    said = [rank.communicate(timeout=60)[0].strip() for rank in ranks]
    codes = [rank.returncode for rank in ranks]
    expect(codes == [0] * len(codes), f"the ranks end with {codes}: {said}")
    print("\n".join(said))


servers()
job()
print("the manifests: as expected")
