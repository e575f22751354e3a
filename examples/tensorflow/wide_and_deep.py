"""A wide-and-deep click model with large embeddings, trained by workers whose parameters lie on ps tasks.

This is one task of the job. The cluster and the task come from TF_CONFIG, as launchers set them; `launch.py` beside
this file starts a whole cluster on this machine:

    python launch.py --protocol grpc++ wide_and_deep.py --steps 200

The script runs on unmodified TensorFlow 2.15 to 2.21. The only thing that it needs for GRPC++ is `--protocol grpc++`.

Both protocols end with the same loss, to the last bit. That takes two things:

* Clicks come from a seed and not from a file: batch `n` of worker `w` is the same in each run.
* Updates are synchronous and have one order. Each worker puts its gradients into a queue of its own on each ps. The
  first worker takes from all queues, applies what it took, worker by worker, and then lets the others go on.
"""

import argparse
import json
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1


def main():
    options = parse_options()
    cluster, job, index = read_tf_config()
    # The first of these tasks is the chief.
    workers = [(name, task) for name in ("chief", "worker") for task in range(len(cluster.get(name, [])))]

    tf1.disable_eager_execution()
    tf1.enable_resource_variables()
    tf.config.experimental.enable_op_determinism()
    tf1.set_random_seed(options.seed)

    server = tf.distribute.Server(cluster, job_name=job, task_index=index, protocol=options.protocol)
    if job == "ps":
        server.join()
        return
    worker = workers.index((job, index))
    result = train(options, cluster, server.target, f"/job:{job}/task:{index}", worker, len(workers))
    if worker == 0:
        print(f"{options.protocol}: {result['steps_per_second']:.2f} steps/s, loss {result['loss']!r}", flush=True)
        print("result " + json.dumps(result), flush=True)


def train(options, cluster, target, worker_device, worker, worker_count):
    """Runs the steps of one worker; returns the speed and the loss on clicks that no worker saw."""
    device = tf1.train.replica_device_setter(cluster=cluster, worker_device=worker_device)
    with tf1.device(device):
        model = Model(options)
        ids, numbers, clicks = placeholders(options)
        loss, gradients = model.loss_and_gradients(ids, numbers, clicks)
        step = synchronous_step(gradients, worker, worker_count, options.learning_rate)

    batches = [synthetic_clicks(options, worker, batch) for batch in range(options.batches)]
    held_out = synthetic_clicks(options, worker_count, 0)

    def feed(batch):
        return dict(zip((ids, numbers, clicks), batch))

    settings = tf1.ConfigProto(intra_op_parallelism_threads=1)
    with tf1.train.MonitoredTrainingSession(master=target, is_chief=worker == 0, config=settings) as session:
        if worker == 0:
            report("start", session.run(loss, feed(held_out)))
        for number in range(options.warm_up_steps):
            session.run(step, feed(batches[number % len(batches)]))
        start = time.perf_counter()
        for number in range(options.warm_up_steps, options.warm_up_steps + options.steps):
            session.run(step, feed(batches[number % len(batches)]))
            if worker == 0 and number % options.report_every == 0:
                report(f"step {number}", session.run(loss, feed(held_out)))
        seconds = time.perf_counter() - start
        result = {"protocol": options.protocol, "steps": options.steps, "steps_per_second": options.steps / seconds}
        if worker == 0:
            result["loss"] = float(session.run(loss, feed(held_out)))
    return result


class Model:
    """The variables. `replica_device_setter` spreads them over the ps tasks."""

    def __init__(self, options):
        self.slots = options.slots
        self.wide = [variable(f"wide_{slot}", lambda: tf.zeros([options.rows, 1])) for slot in range(options.slots)]
        self.deep = [
            variable(f"deep_{slot}", uniform([options.rows, options.dimension], 0.05, options.seed, slot))
            for slot in range(options.slots)
        ]
        sizes = [options.slots * options.dimension + options.numbers, *options.layers, 1]
        self.layers = [
            (
                variable(
                    f"kernel_{layer}", uniform([rows, columns], (6 / (rows + columns)) ** 0.5, options.seed, -layer)
                ),
                variable(f"bias_{layer}", lambda columns=columns: tf.zeros([columns])),
            )
            for layer, (rows, columns) in enumerate(zip(sizes, sizes[1:]), start=1)
        ]

    def loss_and_gradients(self, ids, numbers, clicks):
        """The mean loss, and pairs of gradient and variable.

        A row that occurs often in a batch is fetched once, and gets one gradient.
        """
        wide_rows, deep_rows, row_ids, places = [], [], [], []
        for slot, slot_ids in enumerate(tf.unstack(ids, num=self.slots, axis=1)):
            unique_ids, place = tf.unique(slot_ids)
            row_ids.append(unique_ids)
            places.append(place)
            wide_rows.append(tf.nn.embedding_lookup(self.wide[slot], unique_ids))
            deep_rows.append(tf.nn.embedding_lookup(self.deep[slot], unique_ids))

        wide = tf.add_n([tf.gather(rows, place) for rows, place in zip(wide_rows, places)])
        hidden = tf.concat([tf.gather(rows, place) for rows, place in zip(deep_rows, places)] + [numbers], axis=1)
        for kernel, bias in self.layers[:-1]:
            hidden = tf.nn.relu(tf.matmul(hidden, kernel) + bias)
        kernel, bias = self.layers[-1]
        logits = tf.squeeze(wide + tf.matmul(hidden, kernel) + bias, axis=1)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=clicks, logits=logits))

        dense = [part for layer in self.layers for part in layer]
        found = tf.gradients(loss, wide_rows + deep_rows + dense)
        tables = self.wide + self.deep
        gradients = [
            # The gradient of the rows that were fetched has a line for each use; this adds up those of one row.
            (tf.IndexedSlices(tf.convert_to_tensor(values), unique_ids), table)
            for values, unique_ids, table in zip(found, row_ids + row_ids, tables)
        ]
        gradients += zip(found[len(tables) :], dense)
        return loss, gradients


def synchronous_step(gradients, worker, worker_count, learning_rate):
    """An operation that hands the gradients of this worker to the ps tasks and waits until all workers' are applied."""
    optimizer = tf1.train.AdagradOptimizer(learning_rate)
    with tf1.device("/job:ps/task:0"):
        permits = [
            tf1.FIFOQueue(2, [tf.bool], shapes=[[]], shared_name=f"permits_{other}") for other in range(worker_count)
        ]
    by_ps = {}
    for gradient, parameter in gradients:
        by_ps.setdefault(parameter.device, []).append((gradient, parameter))

    handed_over, updates = [], []
    for ps, pairs in sorted(by_ps.items()):
        with tf1.device(ps):
            queues = [gradient_queue(ps, pairs, other) for other in range(worker_count)]
            handed_over.append(queues[worker].enqueue(flatten(pairs)))
            if worker == 0:
                updates.append(apply_in_order(optimizer, queues, pairs))
    if worker != 0:
        with tf.control_dependencies(handed_over):
            return permits[worker].dequeue().op
    with tf.control_dependencies(handed_over + updates):
        return tf.group(*[permit.enqueue(True) for permit in permits[1:]])


def gradient_queue(ps, pairs, worker):
    """The queue of `worker` on `ps`. All workers name it alike, and so share it."""
    types = [tensor.dtype for tensor in flatten(pairs)]
    return tf1.FIFOQueue(2, types, shared_name=f"gradients_{worker}_{ps.replace('/', '_').replace(':', '_')}")


def apply_in_order(optimizer, queues, pairs):
    """Takes the gradients of all workers, and then applies them, worker by worker. Runs on the ps.

    A worker that has put its gradients into a queue has read all that it needs. Nothing may change before.
    """
    taken = [queue.dequeue() for queue in queues]
    applied = tf.group(*[tensors[0].op for tensors in taken])
    for tensors in taken:
        with tf.control_dependencies([applied]):
            applied = optimizer.apply_gradients(unflatten([tf.identity(tensor) for tensor in tensors], pairs))
    return applied


def flatten(pairs):
    tensors = []
    for gradient, _ in pairs:
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        tensors += [gradient.values, gradient.indices] if is_sparse else [gradient]
    return tensors


def unflatten(tensors, pairs):
    tensors = iter(tensors)
    rebuilt = []
    for gradient, parameter in pairs:
        values = next(tensors)
        if isinstance(gradient, tf.IndexedSlices):
            values.set_shape([None, parameter.shape[1]])
            values = tf.IndexedSlices(values, next(tensors))
        else:
            values.set_shape(parameter.shape)
        rebuilt.append((values, parameter))
    return rebuilt


def synthetic_clicks(options, worker, batch):
    """Ids, numbers and clicks of one batch. Few ids are frequent, as in life; a hidden rule makes the clicks."""
    random = np.random.default_rng([options.seed, worker, batch])
    ids = np.minimum(random.zipf(1.2, [options.batch_size, options.slots]) - 1, options.rows - 1).astype(np.int64)
    numbers = random.standard_normal([options.batch_size, options.numbers]).astype(np.float32)
    hidden = np.sin(ids * 0.7 + np.arange(options.slots)).sum(axis=1) + numbers[:, 0] - 0.5
    clicks = random.random(options.batch_size) < 1 / (1 + np.exp(-hidden))
    return ids, numbers, clicks.astype(np.float32)


def placeholders(options):
    return (
        tf1.placeholder(tf.int64, [options.batch_size, options.slots], "ids"),
        tf1.placeholder(tf.float32, [options.batch_size, options.numbers], "numbers"),
        tf1.placeholder(tf.float32, [options.batch_size], "clicks"),
    )


def variable(name, initial):
    return tf1.Variable(initial, name=name, use_resource=True)


def uniform(shape, limit, seed, stream):
    return lambda: tf.random.stateless_uniform(shape, seed=[seed, stream], minval=-limit, maxval=limit)


def report(what, loss):
    print(f"{what}: loss {loss:.6f}", flush=True)


def read_tf_config():
    """The cluster, and the job and index of this task."""
    try:
        config = json.loads(os.environ["TF_CONFIG"])
        return config["cluster"], config["task"]["type"], int(config["task"]["index"])
    except (KeyError, ValueError) as error:
        raise SystemExit(
            "TF_CONFIG must hold a cluster and a task; start a cluster with: python launch.py wide_and_deep.py"
        ) from error


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--protocol", default="grpc", help="grpc or grpc++")
    parser.add_argument("--steps", type=int, default=200, help="steps that are timed")
    parser.add_argument("--warm-up-steps", type=int, default=20)
    parser.add_argument("--report-every", type=int, default=50, help="steps between losses")
    parser.add_argument("--batch-size", type=int, default=512, help="clicks per worker and step")
    parser.add_argument("--batches", type=int, default=64, help="different batches of a worker, used in turn")
    parser.add_argument("--slots", type=int, default=16, help="categorical features, each with tables of its own")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of each table")
    parser.add_argument("--dimension", type=int, default=16, help="columns of each deep table")
    parser.add_argument("--numbers", type=int, default=13, help="numeric features")
    parser.add_argument("--layers", type=int, nargs="*", default=[256, 64], help="widths of the hidden layers")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
