#include "answer.h"

#include "counters.h"
#include "status.h"
#include "tensor.h"
#include "tensorflow/core/platform/threadpool.h"

namespace grpcxx_tensorflow {
namespace {

void Answer(grpcxx_responder* responder, const tensorflow::Tensor& value, bool is_dead) {
  grpcxx_tensor* tensor = nullptr;
  const absl::Status lent = Lend(value, is_dead, &tensor);
  if (!lent.ok()) {
    Add(Count().served_errors);
    return AnswerError(responder, lent);
  }
  Add(Count().served_tensors);
  Add(Count().served_bytes, grpcxx_tensor_data_size(tensor));
  grpcxx_responder_answer_tensors(responder, &tensor, 1);
  grpcxx_tensor_release(tensor);
}

}  // namespace

void AnswerTensor(tensorflow::WorkerEnv* env, grpcxx_responder* responder, const absl::Status& status,
                  const tensorflow::Tensor& value, bool is_dead) {
  if (!status.ok()) {
    Add(Count().served_errors);
    return AnswerError(responder, status);
  }
  if (!is_dead && IsSlowToLend(value)) {
    return env->compute_pool->Schedule([responder, value] { Answer(responder, value, false); });
  }
  Answer(responder, value, is_dead);
}

}  // namespace grpcxx_tensorflow
