#include "step_service.h"

#include <limits>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "counters.h"
#include "status.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/platform/threadpool.h"
#include "tensorflow/core/protobuf/worker.pb.h"

namespace grpcxx_tensorflow {
namespace {

// A request that is being served, and what its answer is made of.
template <typename Request, typename Response>
struct Served {
  grpcxx_responder* responder;
  Request request;
  Response response;
  tensorflow::CallOptions options;

  void Answer(const absl::Status& status) {
    if (!status.ok()) {
      Add(Count().served_errors);
      return AnswerError(responder, status);
    }
    if (response.ByteSizeLong() > std::numeric_limits<int>::max()) {
      Add(Count().served_errors);
      return AnswerError(responder, absl::ResourceExhaustedError(absl::StrCat(
                                        "the step returns ", response.ByteSizeLong(),
                                        " bytes, which do not fit into a message; fetch less at a time")));
    }
    Add(Count().served_step_calls);
    const std::string message = response.SerializeAsString();
    grpcxx_responder_answer_message(responder, message.data(), message.size());
  }
};

// Parses the request; nullptr if it is none, which is answered.
template <typename Request, typename Response>
std::shared_ptr<Served<Request, Response>> Parse(grpcxx_request* request, grpcxx_responder* responder) {
  auto served = std::make_shared<Served<Request, Response>>();
  served->responder = responder;
  size_t size = 0;
  const void* data = grpcxx_request_message(request, &size);
  const bool is_parsed = size <= std::numeric_limits<int>::max() &&
                         served->request.ParseFromArray(data, static_cast<int>(size));
  grpcxx_request_release(request);
  if (is_parsed) return served;
  served->Answer(absl::InvalidArgumentError(
      absl::StrCat("the ", size, " bytes of the request are no ", served->request.GetTypeName())));
  return nullptr;
}

using RunGraph = Served<tensorflow::RunGraphRequest, tensorflow::RunGraphResponse>;
using CleanupGraph = Served<tensorflow::CleanupGraphRequest, tensorflow::CleanupGraphResponse>;

// A step that nobody wants any more. Giving it up ends all that waits in it: not on a thread of the engine.
struct Unwanted {
  tensorflow::thread::ThreadPool* pool;
  std::shared_ptr<RunGraph> served;

  static void Cancel(void* context) {
    const auto* step = static_cast<Unwanted*>(context);
    step->pool->Schedule([served = step->served] { served->options.StartCancel(); });
  }
  static void Free(void* context) { delete static_cast<Unwanted*>(context); }
};

}  // namespace

void ServeRunGraph(tensorflow::WorkerEnv* env, tensorflow::WorkerInterface* worker, grpcxx_request* request,
                   grpcxx_responder* responder) {
  grpcxx_request_retain(request);
  env->compute_pool->Schedule([pool = env->compute_pool, worker, request, responder] {
    const auto served = Parse<tensorflow::RunGraphRequest, tensorflow::RunGraphResponse>(request, responder);
    if (served == nullptr) return;
    grpcxx_responder_on_cancel(responder, &Unwanted::Cancel, &Unwanted::Free, new Unwanted{pool, served});
    worker->RunGraphAsync(&served->options, &served->request, &served->response, [served](const absl::Status& status) {
      served->options.ClearCancelCallback();
      served->Answer(status);
    });
  });
}

void ServeCleanupGraph(tensorflow::WorkerEnv* env, tensorflow::WorkerInterface* worker, grpcxx_request* request,
                       grpcxx_responder* responder) {
  grpcxx_request_retain(request);
  env->compute_pool->Schedule([worker, request, responder] {
    const auto served = Parse<tensorflow::CleanupGraphRequest, tensorflow::CleanupGraphResponse>(request, responder);
    if (served == nullptr) return;
    worker->CleanupGraphAsync(&served->request, &served->response,
                              [served](const absl::Status& status) { served->Answer(status); });
  });
}

}  // namespace grpcxx_tensorflow
