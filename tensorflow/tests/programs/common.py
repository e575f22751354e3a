"""What all programs share: their place in the cluster, the plugin, its counters."""

import ctypes
import glob
import json
import os
import sys

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


def result(value):
    print("RESULT " + json.dumps(value), flush=True)


def leave(code=0):
    """Ends the process at once: a server of TensorFlow cannot be stopped."""
    sys.stdout.flush()
    os._exit(code)
