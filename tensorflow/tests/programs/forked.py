"""A worker that receives values of the ps and forks; tells whether each process sees its own writes alone."""

import os
import sys

import common
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()
server = common.start_server()
with v1.device("/job:ps/task:0"):
    sizes = (100, 100_000, 4 << 20)
    sent = [v1.get_variable(f"v{size}", [size], initializer=v1.ones_initializer()) for size in sizes]
with v1.device(f"/job:{common.TASK['job']}/task:{common.TASK['index']}"):
    received = [tf.identity(tensor) for tensor in sent]
session = v1.Session(server.target)
session.run(v1.global_variables_initializer())
arrays = session.run(received)
told, tell = os.pipe()
heard, hear = os.pipe()
child = os.fork()
if child == 0:
    for array in arrays:
        array[:] = 2
    os.write(tell, b"x")
    os.read(heard, 1)
    os._exit(0 if all((array == 2).all() for array in arrays) else 1)
os.read(told, 1)
is_untouched = all((array == 1).all() for array in arrays)
for array in arrays:
    array[:] = 3
os.write(hear, b"x")
is_childs_own = os.waitpid(child, 0)[1] == 0
# Whatever has their memory now.
del arrays
again = session.run(received)
is_well = all(np.all(array == 1) for array in again)
common.result({"parent": is_untouched, "child": is_childs_own, "after": is_well, "counters": common.counters()})
sys.stdin.readline()
common.leave()
