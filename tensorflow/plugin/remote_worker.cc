#include "remote_worker.h"

#include <utility>

#include "buffer_receive.h"
#include "receive.h"
#include "tensorflow/core/framework/device_base.h"

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
  if (local_->engine->fuses()) fuser_ = std::make_shared<Fuser>();
}

void RemoteWorker::RecvTensorAsync(tensorflow::CallOptions* opts, const tensorflow::RecvTensorRequest* request,
                                   tensorflow::TensorResponse* response, tensorflow::StatusCallback done) {
  const tensorflow::DeviceBase* device = response->device();
  if (device == nullptr || device->attributes().device_type() != "CPU") {
    // The CPU must not write to memory of another device.
    Count().Fell(Fallback::kDevice);
    return grpc_->RecvTensorAsync(opts, request, response, std::move(done));
  }
  (new TensorReceive(shared_from_this(), opts, request, response, std::move(done)))->Begin();
}

void RemoteWorker::RecvBufAsync(tensorflow::CallOptions* opts, const tensorflow::RecvBufRequest* request,
                                tensorflow::RecvBufResponse* response, tensorflow::StatusCallback done) {
  if (!BufferReceive::IsOnHost(*request)) {
    Count().Fell(Fallback::kDevice);
    return grpc_->RecvBufAsync(opts, request, response, std::move(done));
  }
  (new BufferReceive(shared_from_this(), opts, request, response, std::move(done)))->Begin();
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
