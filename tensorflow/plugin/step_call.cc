#include "step_call.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "counters.h"

namespace grpcxx_tensorflow {
namespace {

// Longer responses carry values that the step returns: parsing them would hold up the thread of the engine.
constexpr size_t kParsedAtOnceBytesMax = 64 << 10;
constexpr size_t kRequestBytesMax = size_t{1} << 30;

}  // namespace

StepCall::StepCall(std::shared_ptr<RemoteWorker> worker, tensorflow::CallOptions* options, struct Method method,
                   std::string request, tensorflow::protobuf::MessageLite* response, OverGrpcFn over_grpc,
                   tensorflow::StatusCallback done)
    : Operation(std::move(worker), options, std::move(done)),
      method_(method),
      request_(std::move(request)),
      response_(response),
      over_grpc_(std::move(over_grpc)) {}

bool StepCall::Serialize(const tensorflow::protobuf::MessageLite& request, std::string* serialized) {
  return request.ByteSizeLong() <= kRequestBytesMax && request.SerializeToString(serialized);
}

void StepCall::OverStar(const std::shared_ptr<Peer>& peer) {
  grpcxx_call_options call_options = {};
  call_options.struct_size = sizeof(call_options);
  call_options.timeout_ms = static_cast<uint64_t>(std::max<int64_t>(0, options()->GetTimeout()));
  grpcxx_message_call(peer->handle, call(), method_.number, request_.data(), request_.size(), &call_options,
                      &StepCall::Done, this);
}

void StepCall::CountFallback(Fallback reason) { Count().StepFell(reason); }

void StepCall::Done(void* user, const grpcxx_status* status, const void* data, size_t size) {
  auto* call = static_cast<StepCall*>(user);
  if (status != nullptr) return call->Failed(status);
  if (size <= kParsedAtOnceBytesMax) return call->Arrived(data, size);
  call->worker().Run([call, copy = std::string(static_cast<const char*>(data), size)] {
    call->Arrived(copy.data(), copy.size());
  });
}

void StepCall::Arrived(const void* data, size_t size) {
  Add(Count().step_calls);
  if (size > std::numeric_limits<int>::max() || !response_->ParseFromArray(data, static_cast<int>(size))) {
    return End(absl::InternalError(absl::StrCat("the ", size, " bytes that answer ", Method(), " cannot be parsed")));
  }
  End(absl::OkStatus());
}

}  // namespace grpcxx_tensorflow
