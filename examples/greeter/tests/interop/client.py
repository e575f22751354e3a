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

load = message("probe.Load")
loads = [load(data=bytes(length), note=str(length)) for length in [0, 1, 5000, 1 << 20, 7]]


def stream(kind, path, request, answer):
    return getattr(channel, kind)(
        path,
        request_serializer=message(request).SerializeToString,
        response_deserializer=message(answer).FromString,
    )


echo_all = stream("stream_stream", "/probe.Probe/EchoAll", "probe.Load", "probe.Load")
echoes = echo_all(iter(loads), timeout=20, metadata=[("user", "worker 0")])
assert dict(echoes.initial_metadata())["user"] == "worker 0"
assert list(echoes) == loads
count = stream("stream_unary", "/probe.Probe/Count", "probe.Load", "probe.Span")
assert count(iter(loads), timeout=20).milliseconds == sum(len(load.data) for load in loads)
flood = stream("unary_stream", "/probe.Probe/Flood", "probe.Order", "probe.Load")
order = message("probe.Order")
answers = flood(order(messages=3, bytes=10, code=5), timeout=20)
try:
    for number, answer in enumerate(answers):
        assert len(answer.data) == 10 and number < 3
    raise SystemExit("it did not fail")
except grpc.RpcError as error:
    assert number == 2 and error.code() == grpc.StatusCode.NOT_FOUND, error
assert len(list(flood(order(messages=50000, bytes=100), timeout=20))) == 50000
endless = flood(order(messages=1000000, bytes=1000), timeout=20)
next(endless)
endless.cancel()
print("passed streams")

health = health_pb2_grpc.HealthStub(channel)
for service in ["", "helloworld.Greeter", "probe.Probe"]:
    answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=20)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING, service
print("passed health")
