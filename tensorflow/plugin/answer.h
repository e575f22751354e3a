#ifndef GRPCXX_TENSORFLOW_ANSWER_H_
#define GRPCXX_TENSORFLOW_ANSWER_H_

#include <functional>

#include "absl/status/status.h"
#include "grpcxx.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/framework/tensor.h"

namespace grpcxx_tensorflow {

// Takes a tensor that somebody has asked for.
using TensorCallback = std::function<void(const absl::Status&, const tensorflow::Tensor& value, bool is_dead)>;

// Answers a request for one tensor, and ends the responder. Runs on any thread; what takes long is left to the
// compute pool, since the thread may be one of the engine.
void AnswerTensor(tensorflow::WorkerEnv* env, grpcxx_responder* responder, const absl::Status& status,
                  const tensorflow::Tensor& value, bool is_dead);

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_ANSWER_H_
