"""What calls and arrays cost in Python, beside pyzmq, grpcio and memcpy, two processes on this machine.

    pip install pyzmq grpcio
    python tensorflow/bench/arrays.py --rounds 3

Each round measures everything once, so that all of it sees the same machine; the table has the medians of the rounds.
A peer that is not installed is left out, and a line says so.
"""

import argparse
import importlib.util
import statistics
import subprocess
import sys
import time

import numpy as np

SMALL = np.arange(10.0)
LARGE_BYTES = 64 << 20
WARM_UP_SHARE = 5


def main():
    options = parse_options()
    if options.serve:
        return SERVERS[options.serve]()
    table = {}
    for _ in range(options.rounds):
        for name, value in measured(options):
            table.setdefault(name, []).append(value)
    medians = {name: statistics.median(values) for name, values in table.items()}
    for name, value in medians.items():
        unit = "us" if value > 0 and name.startswith("call") else "GB/s"
        ratio = medians.get(BASELINES.get(name.split(":")[0], ""), 0.0)
        beside = f"   {value / ratio:5.2f} x {BASELINES[name.split(':')[0]]}" if ratio else ""
        print(f"{name:40} {value:8.2f} {unit}{beside}")


def measured(options):
    """Names and values of one round."""
    yield from memcpy()
    for peer in ("pyzmq", "grpcio"):
        if importlib.util.find_spec({"pyzmq": "zmq", "grpcio": "grpc"}[peer]) is None:
            print(f"{peer} is not installed and left out", file=sys.stderr)
            continue
        with Server(peer) as address:
            yield f"call: {peer}", CLIENTS[peer](address, options.calls)
    yield from ours(options.calls)


def memcpy():
    source = np.ones(LARGE_BYTES, np.uint8)
    yield "copy: memcpy, first", rate(lambda: np.array(source))
    target = np.zeros_like(source)
    yield "copy: memcpy", best_rate(lambda: np.copyto(target, source))


def ours(calls):
    import grpcxx

    array = np.ones(LARGE_BYTES, np.uint8)
    with Server("grpcxx") as address, grpcxx.Client(address, timeout=60) as client:
        yield "call: grpcxx, function", latency(lambda: client.call("double", {"x": SMALL}), calls)
        yield "call: grpcxx, short function", latency(lambda: client.call("double_short", {"x": SMALL}), calls)
        yield "call: grpcxx, stored array", latency(lambda: client.pull("small"), calls)
        many = {f"x{place}": SMALL for place in range(100)}
        client.push(many)
        names = list(many)
        yield "call: grpcxx, 100 stored arrays", latency(lambda: client.pull(names), calls)
    with Server("grpcxx") as address, grpcxx.Client(address, timeout=60) as client:
        client.stored()
        yield "copy: push, first", rate(lambda: client.push("pushed", array))
        yield "copy: push", best_rate(lambda: client.push("pushed", array))
        yield "copy: pull of what was pushed", best_rate(lambda: client.pull("pushed"))
    with Server("grpcxx") as address, grpcxx.Client(address, timeout=60) as client:
        client.stored()
        yield "copy: pull, first", rate(lambda: client.pull("large"))
        yield "copy: pull", best_rate(lambda: client.pull("large"))
        out = np.zeros_like(array)
        yield "copy: pull into out", best_rate(lambda: client.pull("large", out=out))
    with Server("grpcxx") as address, grpcxx.Client(address, timeout=60) as client:
        yield "copy: pull of a copy", best_rate(lambda: client.pull("shown"))
        yield "copy: pull of a copy, copy=False", best_rate(lambda: client.pull("shown", copy=False))


class Server:
    """A server in a process of its own; entering tells its address."""

    def __init__(self, kind):
        command = [sys.executable, __file__, "--serve", kind]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self._process.stdout.readline().strip()

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()


def serve_pyzmq():
    import zmq

    socket = zmq.Context().socket(zmq.REP)
    print(f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}", flush=True)
    while True:
        socket.send((np.frombuffer(socket.recv()) * 2).tobytes())


def call_pyzmq(address, calls):
    import zmq

    socket = zmq.Context().socket(zmq.REQ)
    socket.connect(address)

    def call():
        socket.send(SMALL.tobytes())
        return np.frombuffer(socket.recv())

    return latency(call, calls)


def serve_grpcio():
    from concurrent import futures

    import grpc

    class Double(grpc.GenericRpcHandler):
        def service(self, _details):
            return grpc.unary_unary_rpc_method_handler(lambda request, _: (np.frombuffer(request) * 2).tobytes())

    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((Double(),))
    print(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", flush=True)
    server.start()
    server.wait_for_termination()


def call_grpcio(address, calls):
    import grpc

    with grpc.insecure_channel(address) as channel:
        double = channel.unary_unary("/bench/Double")
        return latency(lambda: np.frombuffer(double(SMALL.tobytes())), calls)


def serve_grpcxx():
    import grpcxx

    with grpcxx.Server() as server:
        server.register(lambda x: x * 2, name="double")
        server.register(lambda x: x * 2, name="double_short", short=True)
        server.push({"small": SMALL, "large": np.ones(LARGE_BYTES, np.uint8)})
        server.push("shown", np.ones(LARGE_BYTES, np.uint8), copy=True)
        print(server.address, flush=True)
        server.wait()


def latency(call, calls):
    """The median time of a call in microseconds."""
    for _ in range(calls // WARM_UP_SHARE):
        call()
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def rate(copy):
    """Gigabytes of the large array per second, once."""
    start = time.perf_counter()
    copy()
    return LARGE_BYTES / (time.perf_counter() - start) / 1e9


def best_rate(copy, times=12):
    """The median rate behind two that are not counted."""
    return statistics.median([rate(copy) for _ in range(times)][2:])


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=2000, help="small calls of each kind in a round")
    parser.add_argument("--serve", choices=SERVERS, help=argparse.SUPPRESS)
    return parser.parse_args()


SERVERS = {"pyzmq": serve_pyzmq, "grpcio": serve_grpcio, "grpcxx": serve_grpcxx}
CLIENTS = {"pyzmq": call_pyzmq, "grpcio": call_grpcio}
# What a line is set beside, by its first word.
BASELINES = {"call": "call: pyzmq", "copy": "copy: memcpy"}

if __name__ == "__main__":
    main()
