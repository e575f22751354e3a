#ifndef GRPCXX_TENSORFLOW_STEP_REQUEST_H_
#define GRPCXX_TENSORFLOW_STEP_REQUEST_H_

#include <cstdint>

#include "tensorflow/core/distributed_runtime/message_wrappers.h"
#include "tensorflow/core/platform/random.h"

namespace grpcxx_tensorflow {

// A request to run a step whose number no other step of this process has.
//
// TensorFlow draws the numbers from a generator of the calling thread that is seeded with 32 bits, and calls from a new
// thread in each step: among the last 100,000 steps, which a worker remembers, each step finds its own numbers with a
// chance of 1 in 43,000, and ends with "received twice". Here one generator serves all threads.
template <class Request>
class StepRequest : public Request {
 public:
  void set_request_id(int64_t) override {
    int64_t request_id = 0;  // Stands for none.
    while (request_id == 0) request_id = static_cast<int64_t>(tensorflow::random::New64());
    Request::set_request_id(request_id);
  }
};

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_STEP_REQUEST_H_
