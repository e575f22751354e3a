"""The C interface, as `capi/include/grpcxx.h` declares it. `tests/test_numpy_header.py` compares the two.

Handles are `c_void_p`. ctypes lets go of the GIL for the time of each call and takes it for each callback.
"""

import ctypes
import os
from ctypes import (
    POINTER,
    Structure,
    c_bool,
    c_char_p,
    c_int32,
    c_int64,
    c_size_t,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path

ABI_VERSION = 1


class Text(Structure):
    """grpcxx_text"""

    _fields_ = [("data", c_void_p), ("size", c_size_t)]


class CallOptions(Structure):
    """grpcxx_call_options"""

    _fields_ = [("struct_size", c_size_t), ("timeout_ms", c_uint64)]


class GraphCall(Structure):
    """grpcxx_graph_call"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("handle", Text),
        ("step_id", c_uint64),
        ("feed_names", POINTER(Text)),
        ("feeds", POINTER(c_void_p)),
        ("num_feeds", c_size_t),
        ("fetch_names", POINTER(Text)),
        ("num_fetches", c_size_t),
        ("ps_graph_count", c_int32),
        ("should_trace", c_bool),
    ]


RELEASE = ctypes.CFUNCTYPE(None, c_void_p, c_bool)
FREE = ctypes.CFUNCTYPE(None, c_void_p)
LOG = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_char_p, c_char_p)
COUNTER = ctypes.CFUNCTYPE(None, c_void_p, c_char_p, c_char_p, c_uint64)
TENSORS = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, POINTER(c_void_p), c_size_t)
FUNCTION = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_void_p)
STORE = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_size_t, c_void_p)
FACT = ctypes.CFUNCTYPE(None, c_void_p, c_char_p, c_char_p)
VARIABLE = ctypes.CFUNCTYPE(None, c_void_p, c_char_p, c_char_p, c_char_p, c_char_p, c_char_p)

# No callback here answers with a status, and none of the calls chooses memory by a callback.
ALLOCATE = c_void_p

STATUS = c_void_p

FUNCTIONS = {
    "grpcxx_abi_version": (c_uint32, []),
    "grpcxx_version": (c_char_p, []),
    "grpcxx_status_free": (None, [STATUS]),
    "grpcxx_status_code": (c_int32, [STATUS]),
    "grpcxx_status_reason": (c_int32, [STATUS]),
    "grpcxx_status_message": (c_char_p, [STATUS, POINTER(c_size_t)]),
    "grpcxx_log_set": (None, [c_int32, LOG, c_void_p]),
    "grpcxx_dtype_name": (c_char_p, [c_int32]),
    "grpcxx_tensor_new": (
        STATUS,
        [c_int32, POINTER(c_int64), c_size_t, c_bool, c_void_p, c_size_t, RELEASE, c_void_p, POINTER(c_void_p)],
    ),
    "grpcxx_tensor_copy_new": (
        STATUS,
        [c_int32, POINTER(c_int64), c_size_t, c_bool, c_void_p, c_size_t, POINTER(c_void_p)],
    ),
    "grpcxx_tensor_strings_new": (STATUS, [POINTER(c_int64), c_size_t, POINTER(Text), c_size_t, POINTER(c_void_p)]),
    "grpcxx_tensor_retain": (c_void_p, [c_void_p]),
    "grpcxx_tensor_release": (None, [c_void_p]),
    "grpcxx_tensor_dtype": (c_int32, [c_void_p]),
    "grpcxx_tensor_rank": (c_size_t, [c_void_p]),
    "grpcxx_tensor_dims": (POINTER(c_int64), [c_void_p]),
    "grpcxx_tensor_is_dead": (c_bool, [c_void_p]),
    "grpcxx_tensor_num_elements": (c_size_t, [c_void_p]),
    "grpcxx_tensor_data": (c_void_p, [c_void_p]),
    "grpcxx_tensor_mutable_data": (c_void_p, [c_void_p]),
    "grpcxx_tensor_data_size": (c_size_t, [c_void_p]),
    "grpcxx_tensor_strings": (STATUS, [c_void_p, POINTER(Text), c_size_t]),
    "grpcxx_options_new": (c_void_p, []),
    "grpcxx_options_free": (None, [c_void_p]),
    "grpcxx_options_set_task": (STATUS, [c_void_p, c_char_p, c_size_t, c_uint32]),
    "grpcxx_options_set_listen": (STATUS, [c_void_p, c_char_p, c_size_t]),
    "grpcxx_options_set_variable": (STATUS, [c_void_p, c_char_p, c_size_t, c_char_p, c_size_t]),
    "grpcxx_engine_start": (STATUS, [c_void_p, POINTER(c_void_p)]),
    "grpcxx_engine_shutdown": (STATUS, [c_void_p, c_uint64]),
    "grpcxx_engine_free": (None, [c_void_p]),
    "grpcxx_engine_star_address": (c_char_p, [c_void_p]),
    "grpcxx_engine_star_port": (c_uint16, [c_void_p]),
    "grpcxx_engine_start_report": (c_char_p, [c_void_p]),
    "grpcxx_engine_device": (c_char_p, [c_void_p, c_size_t, POINTER(c_uint64)]),
    "grpcxx_engine_counters": (None, [c_void_p, COUNTER, c_void_p]),
    "grpcxx_peer_new": (STATUS, [c_void_p, c_char_p, c_size_t, POINTER(c_void_p)]),
    "grpcxx_peer_release": (None, [c_void_p]),
    "grpcxx_call_new": (c_void_p, []),
    "grpcxx_call_release": (None, [c_void_p]),
    "grpcxx_call_cancel": (None, [c_void_p]),
    "grpcxx_call_wait": (STATUS, [c_void_p, c_uint64]),
    "grpcxx_call_is_done": (c_bool, [c_void_p]),
    "grpcxx_call_num_tensors": (c_size_t, [c_void_p]),
    "grpcxx_call_tensor": (c_void_p, [c_void_p, c_size_t]),
    "grpcxx_call_message": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "grpcxx_call_set_memory": (STATUS, [c_void_p, c_size_t, c_void_p, c_size_t]),
    "grpcxx_recv_tensor": (
        None,
        [c_void_p, c_void_p, c_int64, c_char_p, c_size_t, POINTER(CallOptions), ALLOCATE, TENSORS, c_void_p],
    ),
    "grpcxx_message_call": (
        None,
        [c_void_p, c_void_p, c_int32, c_void_p, c_size_t, POINTER(CallOptions), c_void_p, c_void_p],
    ),
    "grpcxx_graph_call_begin": (
        None,
        [c_void_p, c_void_p, POINTER(GraphCall), POINTER(CallOptions), ALLOCATE, TENSORS, c_void_p],
    ),
    "grpcxx_request_step_id": (c_int64, [c_void_p]),
    "grpcxx_request_num_feeds": (c_size_t, [c_void_p]),
    "grpcxx_request_feed_name": (c_void_p, [c_void_p, c_size_t, POINTER(c_size_t)]),
    "grpcxx_request_feed": (c_void_p, [c_void_p, c_size_t]),
    "grpcxx_request_num_fetches": (c_size_t, [c_void_p]),
    "grpcxx_request_fetch_name": (c_void_p, [c_void_p, c_size_t, POINTER(c_size_t)]),
    "grpcxx_responder_answer_tensors": (None, [c_void_p, POINTER(c_void_p), c_size_t]),
    "grpcxx_responder_answer_error": (None, [c_void_p, c_int32, c_char_p, c_size_t]),
    "grpcxx_engine_send": (STATUS, [c_void_p, c_int64, c_char_p, c_size_t, c_void_p]),
    "grpcxx_engine_receive": (
        None,
        [c_void_p, c_void_p, c_int64, POINTER(Text), c_size_t, POINTER(CallOptions), TENSORS, c_void_p],
    ),
    "grpcxx_store_put": (STATUS, [c_void_p, POINTER(Text), POINTER(c_void_p), c_size_t]),
    "grpcxx_store_fetch": (STATUS, [c_void_p, c_char_p, c_size_t, POINTER(c_void_p)]),
    "grpcxx_store_remove": (STATUS, [c_void_p, POINTER(Text), c_size_t]),
    "grpcxx_store_list": (None, [c_void_p, STORE, c_void_p]),
    "grpcxx_function_register": (STATUS, [c_void_p, c_char_p, c_size_t, FUNCTION, c_void_p, FREE]),
    "grpcxx_endpoint_map_new": (STATUS, [c_char_p, c_size_t, POINTER(c_void_p)]),
    "grpcxx_endpoint_map_free": (None, [c_void_p]),
    "grpcxx_endpoint_map_path": (c_char_p, [c_void_p]),
    "grpcxx_endpoint_map_size": (c_size_t, [c_void_p]),
    "grpcxx_endpoint_map_entry": (c_char_p, [c_void_p, c_size_t, POINTER(c_char_p)]),
    "grpcxx_facts": (None, [FACT, c_void_p]),
    "grpcxx_variables": (None, [VARIABLE, c_void_p]),
}
"""Result and arguments of each function that this package calls."""


def library_path():
    """Where the engine lies: GRPCXX_LIBRARY if it is set, else in this package."""
    chosen = os.environ.get("GRPCXX_LIBRARY")
    return Path(chosen) if chosen else Path(__file__).resolve().parent / "lib" / "libgrpcxx_capi.so"


def load():
    """Opens the engine and declares its functions."""
    path = library_path()
    if not path.is_file():
        raise ImportError(
            f"{path} is missing: install the package with `pip install ./tensorflow` in a checkout of grpcxx,"
            " or set GRPCXX_LIBRARY to a built libgrpcxx_capi.so"
        )
    library = ctypes.CDLL(str(path))
    library.grpcxx_abi_version.restype, library.grpcxx_abi_version.argtypes = FUNCTIONS["grpcxx_abi_version"]
    if library.grpcxx_abi_version() != ABI_VERSION:
        raise ImportError(
            f"{path} has interface {library.grpcxx_abi_version()} and this package needs {ABI_VERSION}:"
            " install them from one checkout"
        )
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


library = load()
