#include "worker.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "answer.h"
#include "buffer_receive.h"
#include "buffer_service.h"
#include "counters.h"
#include "fused_answer.h"
#include "status.h"
#include "step_service.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/rendezvous_mgr_interface.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/framework/rendezvous.h"
#include "tensorflow/core/platform/logging.h"
#include "trace.h"

namespace grpcxx_tensorflow {
namespace {

// How the names of functions begin by which the engine tells of itself.
constexpr absl::string_view kServerFunctions = "grpcxx.server.";

// Brings a tensor of another device into memory that can be sent from.
void CopyToHost(tensorflow::Device* device, tensorflow::DeviceContext* context, const tensorflow::Tensor& value,
                const TensorCallback& done) {
  if (context == nullptr) {
    return done(absl::InternalError(absl::StrCat("a tensor on ", device->name(), " came without a device context")),
                tensorflow::Tensor(), false);
  }
  tensorflow::AllocatorAttributes attributes;
  attributes.set_gpu_compatible(true);
  attributes.set_on_host(true);
  auto source = std::make_shared<tensorflow::Tensor>(value);
  auto copy = std::make_shared<tensorflow::Tensor>(device->GetAllocator(attributes), value.dtype(), value.shape());
  context->CopyDeviceTensorToCPU(source.get(), "grpcxx", device, copy.get(),
                                 [source, copy, done](const absl::Status& status) { done(status, *copy, false); });
}

}  // namespace

Worker::Worker(tensorflow::WorkerEnv* env, const tensorflow::ConfigProto& config,
               std::shared_ptr<const Engine> engine)
    : tensorflow::GrpcWorker(env, config), engine_(std::move(engine)), late_(env) {}

void Worker::GetStatusAsync(tensorflow::CallOptions* opts, const tensorflow::GetStatusRequest* request,
                            tensorflow::GetStatusResponse* response, bool fail_fast,
                            tensorflow::StatusCallback done) {
  tensorflow::GrpcWorker::GetStatusAsync(
      opts, request, response, fail_fast, [this, response, done = std::move(done)](const absl::Status& status) {
        if (status.ok() && response->device_attributes_size() > 0) {
          std::string* description = response->mutable_device_attributes(0)->mutable_physical_device_desc();
          if (!description->empty()) description->push_back(' ');
          description->append(engine_->announcement().Word());
        }
        done(status);
      });
}

bool Worker::Serve(grpcxx_request* request, grpcxx_responder* responder) {
  switch (grpcxx_request_method(request)) {
    case GRPCXX_GET_STATUS:
      ServeStatus(responder);
      return true;
    case GRPCXX_RECV_TENSOR:
      ServeTensor(request, responder);
      return true;
    case GRPCXX_FUSE_RECV_TENSOR:
      ServeFused(request, responder);
      return true;
    case GRPCXX_STAR_RUN_GRAPH: {
      size_t size = 0;
      const char* handle = grpcxx_request_handle(request, &size);
      const absl::string_view name(handle, size);
      if (name.substr(0, kServerFunctions.size()) == kServerFunctions) return false;
      if (name != kRecvBufHandle) break;
      ServeBuffer(env_, request, responder);
      return true;
    }
    case GRPCXX_RUN_GRAPH:
      ServeRunGraph(env_, this, request, responder);
      return true;
    case GRPCXX_CLEANUP_GRAPH:
      ServeCleanupGraph(env_, this, request, responder);
      return true;
    default:
      break;
  }
  AnswerError(responder, absl::UnimplementedError(absl::StrCat(
                             "a task of TensorFlow serves method ", grpcxx_request_method(request), " over gRPC only")));
  return true;
}

void Worker::ServeStatus(grpcxx_responder* responder) {
  const tensorflow::GetStatusRequest request;
  tensorflow::GetStatusResponse response;
  // Answers before it returns.
  GetStatusAsync(nullptr, &request, &response, true, [&response, responder](const absl::Status& status) {
    if (!status.ok()) return AnswerError(responder, status);
    const std::string message = response.SerializeAsString();
    grpcxx_responder_answer_message(responder, message.data(), message.size());
  });
}

void Worker::ServeTensor(grpcxx_request* request, grpcxx_responder* responder) {
  size_t size = 0;
  const char* text = grpcxx_request_key(request, 0, &size);
  const absl::string_view key(text, size);
  const int64_t step_id = grpcxx_request_step_id(request);
  if (late_.Serve(step_id, key, responder)) return;
  Take(step_id, key,
       [env = env_, responder, traced = std::string(Trace::Active() ? key : absl::string_view())](
           const absl::Status& status, const tensorflow::Tensor& value, bool is_dead) {
         if (!traced.empty()) TraceSend(traced, value);
         AnswerTensor(env, responder, status, value, is_dead);
       });
}

void Worker::ServeFused(grpcxx_request* request, grpcxx_responder* responder) {
  const int64_t step_id = grpcxx_request_step_id(request);
  std::vector<std::string> keys(grpcxx_request_num_keys(request));
  for (size_t i = 0; i < keys.size(); ++i) {
    size_t size = 0;
    const char* text = grpcxx_request_key(request, i, &size);
    keys[i].assign(text, size);
  }
  auto answer = std::make_shared<FusedAnswer>(env_, &late_, responder, step_id, std::move(keys));
  const size_t num_keys = grpcxx_request_num_keys(request);
  for (size_t i = 0; i < num_keys; ++i) {
    Take(step_id, answer->key(i),
         [answer, i](const absl::Status& status, const tensorflow::Tensor& value, bool is_dead) {
           TraceSend(answer->key(i), value);
           answer->Arrived(i, status, value, is_dead);
         });
  }
  answer->AllAsked();
}

void Worker::GrpcRecvTensorAsync(tensorflow::CallOptions* opts, const tensorflow::RecvTensorRequest* request,
                                 ::grpc::ByteBuffer* response, tensorflow::StatusCallback done) {
  tensorflow::Rendezvous::ParsedKey key;
  absl::Status allowed = tensorflow::Rendezvous::ParseKey(request->rendezvous_key(), &key);
  if (allowed.ok()) allowed = MayAnswerPlain("RecvTensor", key.dst_device);
  if (!allowed.ok()) return done(allowed);
  tensorflow::GrpcWorker::GrpcRecvTensorAsync(opts, request, response, std::move(done));
}

void Worker::RecvBufAsync(tensorflow::CallOptions* opts, const tensorflow::RecvBufRequest* request,
                          tensorflow::RecvBufResponse* response, tensorflow::StatusCallback done) {
  const absl::Status allowed = MayAnswerPlain("RecvBuf", request->dst_device());
  if (!allowed.ok()) return done(allowed);
  tensorflow::GrpcWorker::RecvBufAsync(opts, request, response, std::move(done));
}

absl::Status Worker::MayAnswerPlain(const char* method, absl::string_view device) {
  const absl::Status allowed = engine_->CheckPlainAnswer(std::string(device));
  if (allowed.ok()) return allowed;
  Add(Count().refused_plain);
  const std::string text = absl::StrCat(engine_->task(), " hands nothing out over gRPC, which has no TLS, to ", device,
                                        ": ", allowed.message());
  if (!is_refusal_told_.exchange(true)) LOG(WARNING) << "grpc++: " << text << " (told once; refused_plain counts)";
  return absl::Status(allowed.code(), absl::StrCat("grpc++: ", method, ": ", text));
}

void Worker::CleanupGraphAsync(const tensorflow::CleanupGraphRequest* request,
                               tensorflow::CleanupGraphResponse* response, tensorflow::StatusCallback done) {
  const int64_t step_id = request->step_id();
  tensorflow::GrpcWorker::CleanupGraphAsync(request, response,
                                            [this, step_id, done = std::move(done)](const absl::Status& status) {
                                              late_.Cleanup(step_id);
                                              done(status);
                                            });
}

void Worker::Take(int64_t step_id, absl::string_view key, TensorCallback done) {
  tensorflow::Rendezvous::ParsedKey parsed;
  tensorflow::Device* device = nullptr;
  absl::Status status = tensorflow::Rendezvous::ParseKey(key, &parsed);
  if (status.ok()) status = PrepareRecvTensor(parsed, &device);
  if (!status.ok()) return done(status, tensorflow::Tensor(), false);
  env_->rendezvous_mgr->RecvLocalAsync(
      step_id, parsed,
      [device, done = std::move(done)](const absl::Status& received, const tensorflow::Rendezvous::Args& sent,
                                       const tensorflow::Rendezvous::Args&, const tensorflow::Tensor& value,
                                       bool is_dead) {
        const bool is_on_host = device->tensorflow_accelerator_device_info() == nullptr || sent.alloc_attrs.on_host();
        if (!received.ok() || is_dead || is_on_host) return done(received, value, is_dead);
        CopyToHost(device, sent.device_context, value, done);
      });
}
}  // namespace grpcxx_tensorflow
