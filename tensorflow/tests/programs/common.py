"""What all programs share: their place in the cluster, the plugin, its counters."""

import contextlib
import ctypes
import glob
import json
import os
import re
import socket
import sys
from pathlib import Path

import tensorflow as tf

TASK = json.loads(os.environ.get("TEST_TASK", "{}"))


def _plugin():
    """The plugin: the one that TEST_GRPCXX_PLUGIN names, else the one that TensorFlow has opened on import."""
    path = os.environ.get("TEST_GRPCXX_PLUGIN")
    if path:
        return ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
    for folder in sys.path:
        found = glob.glob(os.path.join(folder, "grpcxx/lib", f"libgrpcxx_tensorflow_{tf.__version__}.so"))
        if found:
            return ctypes.CDLL(found[0], mode=os.RTLD_NOW | os.RTLD_LOCAL)
    return None


PLUGIN = None if os.environ.get("TEST_WITHOUT_PLUGIN") else _plugin()


def counters():
    """What the plugin has counted in this process."""
    if PLUGIN is None:
        return {}
    buffer = ctypes.create_string_buffer(65536)
    PLUGIN.GrpcxxTensorFlowCounters.restype = ctypes.c_size_t
    PLUGIN.GrpcxxTensorFlowCounters(buffer, ctypes.c_size_t(len(buffer)))
    return json.loads(buffer.value)


def resident_bytes():
    """Memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def start_server(config=None):
    """The server of this task."""
    if os.environ.get("TEST_FROM_TF_CONFIG"):
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer=TASK["protocol"])
        return tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol=resolver.rpc_layer,
            config=config,
        )
    cluster = tf.train.ClusterSpec(TASK["cluster"])
    return tf.distribute.Server(
        cluster, job_name=TASK["job"], task_index=TASK["index"], protocol=TASK["protocol"], config=config
    )


def kill_shard(star_port):
    """Takes its epoll from the shard that listens on the star port, which panics then."""
    descriptors = [int(name) for name in os.listdir("/proc/self/fd")]
    (listener,) = [number for number in descriptors if _listens_on(number, star_port)]
    for number in descriptors:
        with contextlib.suppress(FileNotFoundError):
            watched = re.findall(r"tfd: +(\d+)", Path(f"/proc/self/fdinfo/{number}").read_text())
            if str(listener) in watched:
                os.dup2(os.open(os.devnull, os.O_RDWR), number)


def _listens_on(number, port):
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as one:
        return one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1 and one.getsockname()[1] == port
    return False


def result(value):
    print("RESULT " + json.dumps(value), flush=True)


def leave(code=0):
    """Ends the process at once: a server of TensorFlow cannot be stopped."""
    sys.stdout.flush()
    os._exit(code)
