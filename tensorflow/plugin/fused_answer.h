#ifndef GRPCXX_TENSORFLOW_FUSED_ANSWER_H_
#define GRPCXX_TENSORFLOW_FUSED_ANSWER_H_

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "grpcxx.h"
#include "late_tensors.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/framework/tensor.h"

namespace grpcxx_tensorflow {

// Gathers the tensors of one fused receive.
//
// Leaves when all are there; or when some are and none has come for a moment, since one that is missing may depend on what
// the peer makes of those that are there. In place of a missing tensor goes LateTensor.
class FusedAnswer : public std::enable_shared_from_this<FusedAnswer> {
 public:
  FusedAnswer(tensorflow::WorkerEnv* env, LateTensors* late, grpcxx_responder* responder, int64_t step_id,
              std::vector<std::string> keys);

  const std::string& key(size_t index) const { return keys_[index]; }

  // The tensor behind a key is there, or will never be.
  void Arrived(size_t index, const absl::Status& status, const tensorflow::Tensor& value, bool is_dead);

  // All keys have been asked for, so that what is missing is really missing.
  void AllAsked();

 private:
  struct Slot {
    bool has_arrived = false;
    bool is_dead = false;
    tensorflow::Tensor value;
  };

  void Look();
  void LookLater();
  // Ends the gathering; the caller holds the lock and then calls Leave without it.
  void Close();
  void Leave();
  void Send();

  tensorflow::WorkerEnv* const env_;
  LateTensors* const late_;
  grpcxx_responder* const responder_;
  const int64_t step_id_;
  const std::vector<std::string> keys_;

  std::mutex mutex_;
  std::vector<Slot> slots_;
  size_t num_arrived_ = 0;
  size_t num_at_last_look_ = 0;
  int looks_ = 0;
  int looks_without_progress_ = 0;
  bool is_all_asked_ = false;
  bool is_looking_ = false;
  bool is_closed_ = false;
  bool is_slow_ = false;
  absl::Status failure_;
};

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_FUSED_ANSWER_H_
