"""Calls a task's services with gRPC's own client, which learns of them by reflection."""

import sys

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

channel = grpc.insecure_channel(sys.argv[1])
database = ProtoReflectionDescriptorDatabase(channel)
pool = descriptor_pool.DescriptorPool(database)


def message(name):
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def method(path, request, answer):
    return channel.unary_unary(
        path,
        request_serializer=message(request).SerializeToString,
        response_deserializer=message(answer).FromString,
    )


names = set(database.get_services())
assert {"helloworld.Greeter", "probe.Probe", "tensorflow.WorkerService"} <= names, names
print("passed services")

say_hello = method("/helloworld.Greeter/SayHello", "helloworld.HelloRequest", "helloworld.HelloReply")
reply = say_hello(message("helloworld.HelloRequest")(name="grpcio"), timeout=20)
assert reply.message == "Hello grpcio!", reply
print("passed hello")

echo = method("/probe.Probe/Echo", "probe.Load", "probe.Load")
load = message("probe.Load")(data=bytes(range(256)) * 8000, note="beside it")
answer, call = echo.with_call(
    load, timeout=20, metadata=[("user", "worker 0"), ("trace-bin", b"\x00\xff")]
)
assert answer == load
said = dict(call.initial_metadata())
assert said["user"] == "worker 0" and said["trace-bin"] == b"\x00\xff", said
print("passed metadata")

fail = method("/probe.Probe/Fail", "probe.Code", "probe.Load")
for code in grpc.StatusCode:
    number = code.value[0]
    if number == 0:
        continue
    try:
        fail(message("probe.Code")(number=number), timeout=20)
        raise SystemExit("it did not fail")
    except grpc.RpcError as error:
        assert error.code() == code, error
        assert error.details() == "as it was told", error
print("passed codes")

wait = method("/probe.Probe/Wait", "probe.Span", "probe.Load")
try:
    wait(message("probe.Span")(milliseconds=60000), timeout=0.2)
    raise SystemExit("it did not end")
except grpc.RpcError as error:
    assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error
print("passed deadline")

health = health_pb2_grpc.HealthStub(channel)
for service in ["", "helloworld.Greeter", "probe.Probe"]:
    answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=20)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING, service
print("passed health")
