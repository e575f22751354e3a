"""Calls a grpcxx endpoint with grpcio, which shares no code with it.

usage: clients.py HOST:PORT

Knows the services only through reflection. The endpoint must serve the engine of `tests/support`, with a tensor of
64 MiB under step 1 and key "large": byte i is i modulo 251. Prints one line for each check.
"""

import sys

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

LARGE_BYTES = 64 << 20
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Services:
    """Calls any method of any service, with messages built from reflection."""

    def __init__(self, channel):
        self.channel = channel
        self.database = ProtoReflectionDescriptorDatabase(channel)
        self.pool = descriptor_pool.DescriptorPool(self.database)

    def call(self, service, method, timeout=20, **fields):
        descriptor = self.pool.FindServiceByName(service).FindMethodByName(method)
        request = message_factory.GetMessageClass(descriptor.input_type)
        response = message_factory.GetMessageClass(descriptor.output_type)
        stub = self.channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        return stub(request(**fields), timeout=timeout)

    def fails(self, code, service, method, **fields):
        try:
            self.call(service, method, **fields)
        except grpc.RpcError as error:
            assert error.code() == code, f"{method}: {error}"
            return error.details()
        raise AssertionError(f"{method} succeeded")


WORKER = "tensorflow.WorkerService"
MASTER = "tensorflow.MasterService"


def reflection(services):
    names = set(services.database.get_services())
    for name in (WORKER, MASTER, "grpc.health.v1.Health"):
        assert name in names, names


def status(services):
    devices = services.call(WORKER, "GetStatus").device_attributes
    assert [device.incarnation for device in devices] == [11]


def devices_of_the_cluster(services):
    devices = services.call(MASTER, "ListDevices")
    assert devices.local_device[0].name == "/job:ps/replica:0/task:0/device:CPU:0"
    assert devices.remote_device[0].name == "/job:worker/replica:0/task:0/device:CPU:0"


def health(services):
    stub = health_pb2_grpc.HealthStub(services.channel)
    for name in ("", WORKER, MASTER):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=20)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING, name
    try:
        stub.Check(health_pb2.HealthCheckRequest(service="nothing"), timeout=20)
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.NOT_FOUND
    else:
        raise AssertionError("an unknown service has a health")


def large_tensor(services):
    answer = services.call(WORKER, "RecvTensor", step_id=1, rendezvous_key="large")
    content = answer.tensor.tensor_content
    assert len(content) == LARGE_BYTES
    pattern = bytes(i % 251 for i in range(251 * 1024))
    whole = LARGE_BYTES // len(pattern)
    for part in range(whole):
        assert content[part * len(pattern) : (part + 1) * len(pattern)] == pattern
    assert content[whole * len(pattern) :] == pattern[: LARGE_BYTES % len(pattern)]


def status_codes(services):
    for code in grpc.StatusCode:
        if code is not grpc.StatusCode.OK:
            text = services.fails(code, WORKER, "RecvTensor", step_id=1, rendezvous_key=code.name)
            assert text == "as asked", text


def deadline(services):
    code = grpc.StatusCode.DEADLINE_EXCEEDED
    services.fails(code, WORKER, "RecvTensor", timeout=0.3, step_id=1, rendezvous_key="never")


def sessions(services):
    handle = services.call(MASTER, "CreateSession").session_handle
    services.call(MASTER, "ListDevices", session_handle=handle)
    services.call(MASTER, "CloseSession", session_handle=handle)
    services.fails(grpc.StatusCode.ABORTED, MASTER, "CloseSession", session_handle=handle)


def graph_executor(services):
    code = grpc.StatusCode.UNIMPLEMENTED
    for service, method in ((WORKER, "RunGraph"), (WORKER, "RegisterGraph"), (MASTER, "RunStep")):
        text = services.fails(code, service, method)
        assert "StarRunGraph" in text, text


CHECKS = (
    reflection,
    status,
    devices_of_the_cluster,
    health,
    large_tensor,
    status_codes,
    deadline,
    sessions,
    graph_executor,
)


def main():
    with grpc.insecure_channel(sys.argv[1], options=UNLIMITED) as channel:
        services = Services(channel)
        for check in CHECKS:
            check(services)
            print("passed", check.__name__, flush=True)


if __name__ == "__main__":
    main()
