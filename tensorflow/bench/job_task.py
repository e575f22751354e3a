"""One process of a job of `job.py`: a server, and for a worker its share of the training.

Reads commands from standard input: `run STEPS` trains that long and answers with how long each step took; `cpu` answers
with the CPU time of this process; `counters` with what the plugin has counted.
"""

import json
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../tests/programs"), os.path.join(HERE, "../../examples/tensorflow")]

import common
import tensorflow as tf
import wide_and_deep as example

v1 = tf.compat.v1

DLRM_SLOTS = 26  # categorical features of the Criteo data set, each with a table of its own
DLRM_NUMBERS = 13  # its numeric features


class Dlrm:
    """Tables that lie on the ps tasks in turn, products of all pairs of what they give, and dense layers."""

    def __init__(self, options):
        def layers(name, sizes):
            return [
                (
                    example.variable(
                        f"{name}_kernel_{layer}",
                        example.uniform([rows, columns], (6 / (rows + columns)) ** 0.5, options.seed, layer),
                    ),
                    example.variable(f"{name}_bias_{layer}", lambda columns=columns: tf.zeros([columns])),
                )
                for layer, (rows, columns) in enumerate(zip(sizes, sizes[1:]))
            ]

        self.tables = [
            example.variable(
                f"table_{slot}", example.uniform([options.rows, options.dimension], 0.05, options.seed, slot)
            )
            for slot in range(options.slots)
        ]
        vectors = options.slots + 1
        pairs = vectors * (vectors - 1) // 2
        self.bottom = layers("bottom", [options.numbers, 64, options.dimension])
        self.top = layers("top", [options.dimension + pairs, *options.layers, 1])

    def train_op(self, ids, numbers, clicks, learning_rate):
        """One step of a worker, which waits for no other worker: its gradients go to the ps as they are."""
        rows, row_ids, vectors = [], [], []
        for table, slot_ids in zip(self.tables, tf.unstack(ids, axis=1)):
            unique_ids, place = tf.unique(slot_ids)
            looked_up = tf.nn.embedding_lookup(table, unique_ids)
            rows.append(looked_up)
            row_ids.append(unique_ids)
            vectors.append(tf.gather(looked_up, place))
        dense = multilayer(self.bottom, numbers)
        stacked = tf.stack([dense, *vectors], axis=1)
        products = tf.matmul(stacked, stacked, transpose_b=True)
        count = len(vectors) + 1
        pairs = [row * count + column for row in range(count) for column in range(row)]
        products = tf.gather(tf.reshape(products, [-1, count * count]), pairs, axis=1)
        logits = tf.squeeze(multilayer(self.top, tf.concat([dense, products], axis=1)), axis=1)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=clicks, logits=logits))

        parameters = [part for layer in self.bottom + self.top for part in layer]
        found = tf.gradients(loss, rows + parameters)
        sparse = [tf.IndexedSlices(tf.convert_to_tensor(values), ids) for values, ids in zip(found, row_ids)]
        gradients = [*zip(sparse, self.tables), *zip(found[len(rows) :], parameters)]
        return v1.train.GradientDescentOptimizer(learning_rate).apply_gradients(gradients)


def multilayer(layers, values):
    for kernel, bias in layers[:-1]:
        values = tf.nn.relu(tf.matmul(values, kernel) + bias)
    kernel, bias = layers[-1]
    return tf.matmul(values, kernel) + bias


def step_of(model, server, task):
    """A function that runs one training step of this worker."""
    workers = len(task["cluster"]["worker"])
    worker = task["index"]
    options = example.parse_options()
    if model == "dlrm":
        options.slots, options.numbers = DLRM_SLOTS, DLRM_NUMBERS
    device = v1.train.replica_device_setter(cluster=task["cluster"], worker_device=f"/job:worker/task:{worker}")
    with v1.device(device):
        ids, numbers, clicks = feeds = example.placeholders(options)
        if model == "dlrm":
            step = Dlrm(options).train_op(ids, numbers, clicks, options.learning_rate)
        else:
            _, gradients = example.Model(options).loss_and_gradients(ids, numbers, clicks)
            step = example.synchronous_step(gradients, worker, workers, options.learning_rate)
    batches = [example.synthetic_clicks(options, worker, batch) for batch in range(options.batches)]
    config = v1.ConfigProto(intra_op_parallelism_threads=1)
    session = v1.train.MonitoredTrainingSession(master=server.target, is_chief=worker == 0, config=config)
    return lambda number: session.run(step, dict(zip(feeds, batches[number % len(batches)])))


def main():
    task = json.loads(os.environ["TEST_TASK"])
    model = sys.argv.pop(1)
    v1.disable_eager_execution()
    v1.enable_resource_variables()
    server = common.start_server()
    step = step_of(model, server, task) if task["job"] == "worker" else None
    print("READY", flush=True)
    done = 0
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "run":
            seconds = []
            for _ in range(int(arguments[0])):
                begin = time.perf_counter()
                step(done)
                done += 1
                seconds.append(time.perf_counter() - begin)
            answer = seconds
        elif command == "cpu":
            answer = time.process_time()
        else:
            answer = common.counters()
        print("ANSWER " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
