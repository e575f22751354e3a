#ifndef GRPCXX_TENSORFLOW_STEP_REQUEST_H_
#define GRPCXX_TENSORFLOW_STEP_REQUEST_H_

#include <cstdint>

#include "tensorflow/core/distributed_runtime/message_wrappers.h"
#include "tensorflow/core/platform/random.h"

namespace grpcxx_tensorflow {

// A RunGraph request that draws its request id itself.
//
// TensorFlow draws it from a generator of the calling thread, which is seeded with 32 bits, and starts a thread for each
// step. A worker remembers 100,000 ids, so each step repeats one with a chance of 1 in 43,000, and ends with "received
// twice". New64 has one generator for all threads.
template <class Request>
class StepRequest : public Request {
 public:
  void set_request_id(int64_t /*drawn by the thread*/) override {
    int64_t request_id = 0;  // Means that there is none.
    while (request_id == 0) request_id = static_cast<int64_t>(tensorflow::random::New64());
    Request::set_request_id(request_id);
  }
};

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_STEP_REQUEST_H_
