#ifndef GRPCXX_TENSORFLOW_WORKER_H_
#define GRPCXX_TENSORFLOW_WORKER_H_

#include <atomic>
#include <memory>

#include "absl/strings/string_view.h"
#include "answer.h"
#include "engine.h"
#include "grpcxx.h"
#include "late_tensors.h"
#include "step_request.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_worker_service.h"

namespace grpcxx_tensorflow {

// The worker of this task: serves peers over gRPC as ever, and over star.
class Worker : public tensorflow::GrpcWorker, public Service {
 public:
  Worker(tensorflow::WorkerEnv* env, const tensorflow::ConfigProto& config, std::shared_ptr<const Engine> engine);

  bool Serve(grpcxx_request* request, grpcxx_responder* responder) override;

  // Adds our announcement to the description of the first device.
  void GetStatusAsync(tensorflow::CallOptions* opts, const tensorflow::GetStatusRequest* request,
                      tensorflow::GetStatusResponse* response, bool fail_fast,
                      tensorflow::StatusCallback done) override;

  tensorflow::MutableRunGraphRequestWrapper* CreateRunGraphRequest() override {
    return new StepRequest<tensorflow::InMemoryRunGraphRequest>;
  }

  // What others receive over gRPC, which has no TLS: refused where TLS is required.
  void GrpcRecvTensorAsync(tensorflow::CallOptions* opts, const tensorflow::RecvTensorRequest* request,
                           ::grpc::ByteBuffer* response, tensorflow::StatusCallback done) override;
  void RecvBufAsync(tensorflow::CallOptions* opts, const tensorflow::RecvBufRequest* request,
                    tensorflow::RecvBufResponse* response, tensorflow::StatusCallback done) override;

  // Forgets tensors of the step that nobody came for.
  void CleanupGraphAsync(const tensorflow::CleanupGraphRequest* request,
                         tensorflow::CleanupGraphResponse* response, tensorflow::StatusCallback done) override;

 private:
  void ServeStatus(grpcxx_responder* responder);
  void ServeTensor(grpcxx_request* request, grpcxx_responder* responder);
  void ServeFused(grpcxx_request* request, grpcxx_responder* responder);
  // Takes a tensor out of a step of this task, as soon as it is there.
  void Take(int64_t step_id, absl::string_view key, TensorCallback done);

  // Whether what this device asks for may be sent there over gRPC; a refusal is counted and told.
  absl::Status MayAnswerPlain(const char* method, absl::string_view device);

  const std::shared_ptr<const Engine> engine_;
  std::atomic<bool> is_refusal_told_{false};
  LateTensors late_;
};

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_WORKER_H_
