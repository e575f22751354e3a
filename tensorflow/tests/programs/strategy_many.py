"""The coordinator of a ParameterServerStrategy whose step reads and updates many small variables.

In the end all workers read them at once.

    strategy_many.py STEPS VARIABLES
"""

import sys

import common
import many_variables
import tensorflow as tf

steps, number = int(sys.argv[1]), int(sys.argv[2])
workers = len(common.TASK["cluster"]["worker"])
strategy, coordinator = many_variables.connect()
variables, step = many_variables.make(strategy, number)
with strategy.scope():
    arrived = tf.Variable(0, name="arrived")


@tf.function
def look():
    """What the variables hold, once all workers have come here: so each of them runs this."""

    def replica():
        arrived.assign_add(1)
        tf.while_loop(lambda _: arrived.read_value() < workers, lambda looked: [looked + 1], [0])
        return tf.reduce_sum(tf.stack([variable.read_value() for variable in variables]))

    return strategy.run(replica)


found = [float(coordinator.fetch(coordinator.schedule(step))) for _ in range(steps)]
last = [variable.numpy().tolist()[:2] for variable in variables]
looks = [coordinator.schedule(look) for _ in range(workers)]
coordinator.join()
common.result(
    {
        "found": found,
        "last": last,
        "looks": [float(coordinator.fetch(one)) for one in looks],
        "counters": common.counters(),
    }
)
common.leave()
