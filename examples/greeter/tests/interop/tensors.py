"""Sends tensors to a service with gRPC's own client, which learns of them by reflection."""

import array
import sys

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

channel = grpc.insecure_channel(sys.argv[1])
pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
Layer = message_factory.GetMessageClass(pool.FindMessageTypeByName("model.Layer"))
Tensor = message_factory.GetMessageClass(pool.FindMessageTypeByName("grpcxx.v1.Tensor"))
scale = channel.unary_unary(
    "/model.Model/Scale",
    request_serializer=Layer.SerializeToString,
    response_deserializer=Layer.FromString,
)

for count in (6, 60_000):
    elements = array.array("f", range(count))
    weights = Tensor(type=Tensor.FLOAT32, shape=[2, count // 2], data=elements.tobytes())
    answer = scale(Layer(factor=2, weights=weights), timeout=20).weights
    assert Tensor.Type.Name(answer.type) == "FLOAT32" and list(answer.shape) == [2, count // 2]
    assert array.array("f", answer.data) == array.array("f", range(0, 2 * count, 2))
print("passed values")

try:
    scale(Layer(weights=Tensor(type=Tensor.INT32, shape=[2], data=bytes(7))), timeout=20)
    raise SystemExit("it did not fail")
except grpc.RpcError as error:
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error
    assert "needs 8 bytes of data, not 7" in error.details(), error
print("passed errors")
