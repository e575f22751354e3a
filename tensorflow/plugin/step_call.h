#ifndef GRPCXX_TENSORFLOW_STEP_CALL_H_
#define GRPCXX_TENSORFLOW_STEP_CALL_H_

#include <functional>
#include <memory>
#include <string>

#include "receive.h"
#include "tensorflow/core/platform/protobuf.h"

namespace grpcxx_tensorflow {

// A method that is called in each step and whose request and response are messages: RunGraph, CleanupGraph.
class StepCall : public Operation {
 public:
  struct Method {
    int32_t number;
    const char* name;
  };
  // Makes the call over gRPC.
  using OverGrpcFn = std::function<void(tensorflow::StatusCallback done)>;

  // `request` is serialized. `response` lives until `done`.
  StepCall(std::shared_ptr<RemoteWorker> worker, tensorflow::CallOptions* options, Method method, std::string request,
           tensorflow::protobuf::MessageLite* response, OverGrpcFn over_grpc, tensorflow::StatusCallback done);

  // A request as bytes; false if it is too long for a message, which gRPC can tell best.
  static bool Serialize(const tensorflow::protobuf::MessageLite& request, std::string* serialized);

 protected:
  void OverStar(const std::shared_ptr<Peer>& peer) override;
  bool IsServedBy(const Peer& peer) const override { return peer.RunsSteps(); }
  void OverGrpc(tensorflow::StatusCallback done) override { over_grpc_(std::move(done)); }
  void CountFallback(Fallback) override;
  const char* Method() const override { return method_.name; }

 private:
  static void Done(void* user, const grpcxx_status* status, const void* data, size_t size);
  void Arrived(const void* data, size_t size);

  const struct Method method_;
  const std::string request_;
  tensorflow::protobuf::MessageLite* const response_;
  const OverGrpcFn over_grpc_;
};

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_STEP_CALL_H_
