#include "remote_worker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "buffer_receive.h"
#include "receive.h"
#include "step_call.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/platform/logging.h"

namespace grpcxx_tensorflow {

RemoteWorker::RemoteWorker(std::shared_ptr<const LocalTask> local,
                           std::shared_ptr<tensorflow::WorkerCacheInterface> cache, tensorflow::WorkerInterface* grpc,
                           std::string target, std::string grpc_address)
    : local_(std::move(local)),
      cache_(std::move(cache)),
      grpc_(grpc),
      target_(std::move(target)),
      grpc_address_(std::move(grpc_address)) {}

RemoteWorker::~RemoteWorker() { cache_->ReleaseWorker(target_, grpc_); }

void RemoteWorker::Open() {
  route_ = std::make_shared<Route>(local_->engine, weak_from_this(), target_, grpc_address_);
  route_->RefreshPlain();
  if (local_->engine->fuses()) fuser_ = std::make_shared<Fuser>();
}

void RemoteWorker::TellFallback(Fallback reason, const std::string& why) {
  // A call that fails instead says so itself.
  if (!route_->CheckPlain().ok()) return;
  if (is_told_[static_cast<int>(reason)].exchange(true, std::memory_order_relaxed)) return;
  const bool is_step = reason == Fallback::kSize;
  LOG(WARNING) << "grpc++: " << (is_step ? "steps go to " : "tensors of ") << target_
               << (is_step ? " over gRPC, because " : " come over gRPC, because ") << why << " (told once; the counter "
               << (is_step ? "fallback_step_calls_" : "fallback_tensors_") << FallbackName(reason) << " goes on)";
}

absl::Status RemoteWorker::FallForDevice(const char* method, const std::string& device) {
  const std::string why = absl::StrCat("what it sends is for memory of ", device, ", which the CPU must not write to");
  const absl::Status allowed = route_->MayFall(method, {Fallback::kDevice, absl::FailedPreconditionError(why)});
  if (!allowed.ok()) return allowed;
  Count().TensorFell(Fallback::kDevice);
  TellFallback(Fallback::kDevice, why);
  return allowed;
}

absl::Status RemoteWorker::FallForSize(const char* method) {
  const std::string why = "the request of a step, with what is fed, is larger than 1 GiB";
  const absl::Status allowed = route_->MayFall(method, {Fallback::kSize, absl::ResourceExhaustedError(why)});
  if (!allowed.ok()) return allowed;
  Count().StepFell(Fallback::kSize);
  TellFallback(Fallback::kSize, why);
  return allowed;
}

void RemoteWorker::RecvTensorAsync(tensorflow::CallOptions* opts, const tensorflow::RecvTensorRequest* request,
                                   tensorflow::TensorResponse* response, tensorflow::StatusCallback done) {
  const tensorflow::DeviceBase* device = response->device();
  if (device == nullptr || device->attributes().device_type() != "CPU") {
    const std::string type = device == nullptr ? "unknown device" : device->attributes().device_type();
    if (const absl::Status allowed = FallForDevice("RecvTensor", type); !allowed.ok()) {
      return Refuse(std::move(done), allowed);
    }
    return grpc_->RecvTensorAsync(opts, request, response, std::move(done));
  }
  (new TensorReceive(shared_from_this(), opts, request, response, std::move(done)))->Begin();
}

void RemoteWorker::RecvBufAsync(tensorflow::CallOptions* opts, const tensorflow::RecvBufRequest* request,
                                tensorflow::RecvBufResponse* response, tensorflow::StatusCallback done) {
  if (!BufferReceive::IsOnHost(*request)) {
    if (const absl::Status allowed = FallForDevice("RecvBuf", request->dst_device()); !allowed.ok()) {
      return Refuse(std::move(done), allowed);
    }
    return grpc_->RecvBufAsync(opts, request, response, std::move(done));
  }
  (new BufferReceive(shared_from_this(), opts, request, response, std::move(done)))->Begin();
}

void RemoteWorker::RunGraphAsync(tensorflow::CallOptions* opts, tensorflow::RunGraphRequestWrapper* request,
                                 tensorflow::MutableRunGraphResponseWrapper* response,
                                 tensorflow::StatusCallback done) {
  if (!StepsGoOverStar()) return grpc_->RunGraphAsync(opts, request, response, std::move(done));
  std::string serialized;
  if (!StepCall::Serialize(request->ToProto(), &serialized)) {
    if (const absl::Status allowed = FallForSize("RunGraph"); !allowed.ok()) return Refuse(std::move(done), allowed);
    return grpc_->RunGraphAsync(opts, request, response, std::move(done));
  }
  const auto over_grpc = [this, opts, request, response](tensorflow::StatusCallback then) {
    grpc_->RunGraphAsync(opts, request, response, std::move(then));
  };
  (new StepCall(shared_from_this(), opts, {GRPCXX_RUN_GRAPH, "RunGraph"}, std::move(serialized),
                get_proto_from_wrapper(response), over_grpc, std::move(done)))
      ->Begin();
}

void RemoteWorker::CleanupGraphAsync(const tensorflow::CleanupGraphRequest* request,
                                     tensorflow::CleanupGraphResponse* response, tensorflow::StatusCallback done) {
  if (!StepsGoOverStar()) return grpc_->CleanupGraphAsync(request, response, std::move(done));
  std::string serialized;
  if (!StepCall::Serialize(*request, &serialized)) {
    return Refuse(std::move(done), absl::InternalError("a CleanupGraphRequest cannot be serialized"));
  }
  const auto over_grpc = [this, request, response](tensorflow::StatusCallback then) {
    grpc_->CleanupGraphAsync(request, response, std::move(then));
  };
  // Nobody can cancel it, but an operation wants options.
  auto options = std::make_shared<tensorflow::CallOptions>();
  const auto ended = [options, done = std::move(done)](const absl::Status& status) { done(status); };
  (new StepCall(shared_from_this(), options.get(), {GRPCXX_CLEANUP_GRAPH, "CleanupGraph"}, std::move(serialized),
                response, over_grpc, ended))
      ->Begin();
}

void RemoteWorker::Refuse(tensorflow::StatusCallback done, const absl::Status& status) {
  Run([done = std::move(done), status] { done(status); });
}

bool RemoteWorker::StepsGoOverStar() {
  bool is_known = false;
  NoStar no_star;
  const std::shared_ptr<Peer> peer = route_->Current(&is_known, &no_star);
  if (peer != nullptr && peer->RunsSteps()) return true;
  if (!route_->CheckPlain().ok()) return true;
  if (!is_known) route_->WhenKnown([](const std::shared_ptr<Peer>&, const NoStar&) {});
  Count().StepFell(!is_known ? Fallback::kNotAsked : peer != nullptr ? Fallback::kNoPlugin : no_star.reason);
  return false;
}

void RemoteWorker::GetStatusAsync(tensorflow::CallOptions* opts, const tensorflow::GetStatusRequest* request,
                                  tensorflow::GetStatusResponse* response, bool fail_fast,
                                  tensorflow::StatusCallback done) {
  grpc_->GetStatusAsync(opts, request, response, fail_fast,
                        [route = route_, response, done = std::move(done)](const absl::Status& status) {
                          if (status.ok()) route->Saw(*response);
                          done(status);
                        });
}

}  // namespace grpcxx_tensorflow
