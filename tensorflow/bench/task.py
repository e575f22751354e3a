"""One process of the benchmark: a server, and for the first worker the session that runs the steps; or the coordinator
of a strategy, which is the chief.

Reads commands from standard input: `run SECONDS` runs steps that long and answers with their number;
`case NAME NUMBER BYTES` makes other steps; `cpu` answers with the CPU time of this process; `counters`
with what the plugin has counted.
"""

import json
import os
import sys
import time

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/programs"))

import common
import many_variables
import tensorflow as tf

v1 = tf.compat.v1
PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"


# What the size 0 stands for: sizes that take turns.
MIXED_BYTES = [64, 1024, 8192, 512, 32768, 4096, 65536, 256]


def variables(device, number, size_bytes):
    sizes = [size_bytes] if size_bytes else MIXED_BYTES
    with tf.device(device):
        return [
            v1.get_variable(
                f"v{index}",
                initializer=lambda size=sizes[index % len(sizes)]: tf.ones([size // 4]),
                use_resource=True,
                dtype=tf.float32,
            )
            for index in range(number)
        ]


def read(number, size_bytes):
    """Each step the worker receives all variables of the ps."""
    values = variables(PS, number, size_bytes)
    with tf.device(WORKER):
        return tf.group([tf.raw_ops.Identity(input=value.read_value()).op for value in values])


def push(number, size_bytes):
    """Each step the ps receives all variables of the worker."""
    values = variables(WORKER, number, size_bytes)
    with tf.device(PS):
        return tf.group([tf.raw_ops.Identity(input=value.read_value()).op for value in values])


def local(number, size_bytes):
    """The graph without a network: the limit to approach."""
    values = variables(WORKER, number, size_bytes)
    with tf.device(WORKER):
        return tf.group([tf.raw_ops.Identity(input=value.read_value()).op for value in values])


def reduce(number, size_bytes):
    """Each step two workers add up tensors of both in a ring."""
    sums = []
    for worker in range(2):
        with tf.device(f"/job:worker/task:{worker}"):
            for index in range(number):
                value = v1.get_variable(
                    f"v{worker}_{index}", initializer=lambda: tf.ones([size_bytes // 4]), use_resource=True
                )
                total = tf.raw_ops.CollectiveReduce(
                    input=value.read_value(), group_size=2, group_key=1, instance_key=100 + index, merge_op="Add",
                    final_op="Id", subdiv_offsets=[0], communication_hint="ring",
                )  # fmt: skip
                sums.append(total.op)
    return tf.group(sums)


CASES = {"read": read, "push": push, "local": local, "reduce": reduce}


def with_leader():
    """A configuration that says who leads collectives."""
    config = v1.ConfigProto()
    config.experimental.collective_group_leader = "/job:worker/replica:0/task:0"
    return config


def step_of(server, case, number, size_bytes):
    """Runs the steps of a case, in a graph, a session and variables of their own."""
    config = with_leader()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0
    graph = tf.Graph()
    with graph.as_default(), graph.container(f"{case}_{number}_{size_bytes}"):
        step = CASES[case](number, size_bytes)
        session = v1.Session(server.target, config=config)
        session.run(v1.global_variables_initializer())
    run = session.make_callable(step)
    for _ in range(3):
        run()
    return run


def step_of_strategy(number, size_bytes):
    """Runs a step that reads and updates variables under ParameterServerStrategy."""
    strategy, coordinator = many_variables.connect()
    _, step = many_variables.make(strategy, number, size_bytes // 4)

    def run():
        coordinator.fetch(coordinator.schedule(step))

    for _ in range(3):
        run()
    return run


def main():
    step = server = None
    arguments = [int(text) if text.isdigit() else text for text in sys.argv[1:]]
    if common.TASK["job"] == "chief":
        step = step_of_strategy(*arguments)
    else:
        server = common.start_server(with_leader())
        v1.disable_eager_execution()
        if arguments:
            step = step_of(server, *arguments)
    print("READY", flush=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "case":
            step = step_of(server, arguments[0], int(arguments[1]), int(arguments[2]))
            answer = "made"
        elif command == "run":
            begin = now = time.perf_counter()
            steps = 0
            while now - begin < float(arguments[0]) or steps < 3:
                step()
                steps += 1
                now = time.perf_counter()
            answer = {"steps": steps, "seconds": now - begin}
        elif command == "cpu":
            answer = time.process_time()
        else:
            answer = common.counters()
        print("ANSWER " + json.dumps(answer), flush=True)


main()
