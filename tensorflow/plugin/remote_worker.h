#ifndef GRPCXX_TENSORFLOW_REMOTE_WORKER_H_
#define GRPCXX_TENSORFLOW_REMOTE_WORKER_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "counters.h"
#include "engine.h"
#include "fuser.h"
#include "route.h"
#include "step_request.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/distributed_runtime/worker_interface.h"

namespace grpcxx_tensorflow {

// What remote workers need of the task they are used by.
struct LocalTask {
  std::shared_ptr<Engine> engine;
  // Runs code on threads of TensorFlow's compute pool.
  std::function<void(std::function<void()>)> run;
  // No device of the task wants memory of a special kind.
  bool has_plain_memory;
  // "/job:worker/replica:0/task:0".
  std::string target;
};

// Another task as TensorFlow sees it: tensors, buffers and what happens in each step go through the engine if the task
// knows grpc++; all else, and everything with tasks that do not, through the gRPC worker inside.
//
// Lives as long as the cache it comes from, and as calls are under way.
class RemoteWorker : public tensorflow::WorkerInterface, public std::enable_shared_from_this<RemoteWorker> {
 public:
  // `cache` made `grpc`, and gets it back in the end.
  RemoteWorker(std::shared_ptr<const LocalTask> local, std::shared_ptr<tensorflow::WorkerCacheInterface> cache,
               tensorflow::WorkerInterface* grpc, std::string target, std::string grpc_address);
  ~RemoteWorker() override;

  // Begins to look for the star port. Once, before anything else.
  void Open();

  const std::string& target() const { return target_; }
  tensorflow::WorkerInterface* grpc() const { return grpc_; }
  Route& route() { return *route_; }
  // Nullptr if receives do not share requests.
  Fuser* fuser() { return fuser_.get(); }
  // Says in the log why tensors of the task take gRPC, once for each reason that is no matter of the route, which
  // tells its own. Counters say how many they are.
  void TellFallback(Fallback reason, const std::string& why);
  // Runs code away from the threads of the engine.
  void Run(std::function<void()> code) { local_->run(std::move(code)); }
  bool has_plain_memory() const { return local_->has_plain_memory; }

  void RecvTensorAsync(tensorflow::CallOptions* opts, const tensorflow::RecvTensorRequest* request,
                       tensorflow::TensorResponse* response, tensorflow::StatusCallback done) override;
  void RecvBufAsync(tensorflow::CallOptions* opts, const tensorflow::RecvBufRequest* request,
                    tensorflow::RecvBufResponse* response, tensorflow::StatusCallback done) override;
  void GetStatusAsync(tensorflow::CallOptions* opts, const tensorflow::GetStatusRequest* request,
                      tensorflow::GetStatusResponse* response, bool fail_fast,
                      tensorflow::StatusCallback done) override;

  void CreateWorkerSessionAsync(const tensorflow::CreateWorkerSessionRequest* request,
                                tensorflow::CreateWorkerSessionResponse* response,
                                tensorflow::StatusCallback done) override {
    grpc_->CreateWorkerSessionAsync(request, response, std::move(done));
  }
  void DeleteWorkerSessionAsync(tensorflow::CallOptions* opts,
                                const tensorflow::DeleteWorkerSessionRequest* request,
                                tensorflow::DeleteWorkerSessionResponse* response,
                                tensorflow::StatusCallback done) override {
    grpc_->DeleteWorkerSessionAsync(opts, request, response, std::move(done));
  }
  void RegisterGraphAsync(const tensorflow::RegisterGraphRequest* request,
                          tensorflow::RegisterGraphResponse* response, tensorflow::StatusCallback done) override {
    grpc_->RegisterGraphAsync(request, response, std::move(done));
  }
  void DeregisterGraphAsync(const tensorflow::DeregisterGraphRequest* request,
                            tensorflow::DeregisterGraphResponse* response,
                            tensorflow::StatusCallback done) override {
    grpc_->DeregisterGraphAsync(request, response, std::move(done));
  }
  using tensorflow::WorkerInterface::RunGraphAsync;
  void RunGraphAsync(tensorflow::CallOptions* opts, tensorflow::RunGraphRequestWrapper* request,
                     tensorflow::MutableRunGraphResponseWrapper* response,
                     tensorflow::StatusCallback done) override;
  tensorflow::MutableRunGraphRequestWrapper* CreateRunGraphRequest() override {
    return new StepRequest<tensorflow::MutableProtoRunGraphRequest>;
  }
  tensorflow::MutableRunGraphResponseWrapper* CreateRunGraphResponse() override {
    return grpc_->CreateRunGraphResponse();
  }
  void CleanupGraphAsync(const tensorflow::CleanupGraphRequest* request, tensorflow::CleanupGraphResponse* response,
                         tensorflow::StatusCallback done) override;
  void CleanupAllAsync(const tensorflow::CleanupAllRequest* request, tensorflow::CleanupAllResponse* response,
                       tensorflow::StatusCallback done) override {
    grpc_->CleanupAllAsync(request, response, std::move(done));
  }
  void LoggingAsync(const tensorflow::LoggingRequest* request, tensorflow::LoggingResponse* response,
                    tensorflow::StatusCallback done) override {
    grpc_->LoggingAsync(request, response, std::move(done));
  }
  void TracingAsync(const tensorflow::TracingRequest* request, tensorflow::TracingResponse* response,
                    tensorflow::StatusCallback done) override {
    grpc_->TracingAsync(request, response, std::move(done));
  }
  void CompleteGroupAsync(tensorflow::CallOptions* opts, const tensorflow::CompleteGroupRequest* request,
                          tensorflow::CompleteGroupResponse* response, tensorflow::StatusCallback done) override {
    grpc_->CompleteGroupAsync(opts, request, response, std::move(done));
  }
  void CompleteInstanceAsync(tensorflow::CallOptions* opts, const tensorflow::CompleteInstanceRequest* request,
                             tensorflow::CompleteInstanceResponse* response,
                             tensorflow::StatusCallback done) override {
    grpc_->CompleteInstanceAsync(opts, request, response, std::move(done));
  }
  void GetStepSequenceAsync(const tensorflow::GetStepSequenceRequest* request,
                            tensorflow::GetStepSequenceResponse* response,
                            tensorflow::StatusCallback done) override {
    grpc_->GetStepSequenceAsync(request, response, std::move(done));
  }

 private:
  // Whether a step goes over star: its peer is known to be there now, for which a step is not worth waiting; or it must
  // not take gRPC.
  bool StepsGoOverStar();
  // Whether a call may go over gRPC that brings something to memory of `device`: counts and tells it.
  absl::Status FallForDevice(const char* method, const std::string& device);
  // Whether a step may go over gRPC whose request star does not take: counts and tells it.
  absl::Status FallForSize(const char* method);
  // Ends a call that was not made. Not at once: whoever makes one waits for it if it ends before that returns.
  void Refuse(tensorflow::StatusCallback done, const absl::Status& status);

  const std::shared_ptr<const LocalTask> local_;
  const std::shared_ptr<tensorflow::WorkerCacheInterface> cache_;
  tensorflow::WorkerInterface* const grpc_;
  const std::string target_;
  const std::string grpc_address_;
  std::shared_ptr<Route> route_;
  std::shared_ptr<Fuser> fuser_;
  std::atomic<bool> is_told_[static_cast<int>(Fallback::kCount)] = {};
};

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_REMOTE_WORKER_H_
