#ifndef GRPCXX_TENSORFLOW_LATE_TENSORS_H_
#define GRPCXX_TENSORFLOW_LATE_TENSORS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcxx.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/framework/tensor.h"

namespace grpcxx_tensorflow {

// Tensors that were taken out of a step for a fused answer but came after it had left: they wait here until they are
// asked for alone, since the step hands each tensor out once. Who got the answer asks at once, so one that nobody has
// asked for in half an hour is dropped: its receiver has died, and nothing tells of the end of its step.
class LateTensors {
 public:
  explicit LateTensors(tensorflow::WorkerEnv* env) : env_(env) {}

  // The tensor behind this key will come here.
  void Expect(int64_t step_id, const std::string& key);

  // A tensor that was expected has come.
  void Arrived(int64_t step_id, const std::string& key, const absl::Status& status, const tensorflow::Tensor& value,
               bool is_dead);

  // Answers with the tensor behind this key, now or when it comes. False if it is not expected here; the responder
  // stays the caller's then.
  bool Serve(int64_t step_id, absl::string_view key, grpcxx_responder* responder);

  // The step is over: nobody will ask any more, and who has asked gets an error.
  void Cleanup(int64_t step_id);

 private:
  using Clock = std::chrono::steady_clock;
  using Name = std::pair<int64_t, std::string>;
  struct Entry {
    grpcxx_responder* responder = nullptr;
    bool has_arrived = false;
    absl::Status status;
    tensorflow::Tensor value;
    bool is_dead = false;
    Clock::time_point arrived;
  };

  // Drops what nobody will ask for any more, now and then. With the lock held.
  void DropForgotten();

  tensorflow::WorkerEnv* const env_;
  std::mutex mutex_;
  std::map<Name, Entry> entries_;
  // Number of entries, so that receives need no lock where there are none.
  std::atomic<size_t> size_{0};
  Clock::time_point looked_through_ = Clock::now();
};

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_LATE_TENSORS_H_
