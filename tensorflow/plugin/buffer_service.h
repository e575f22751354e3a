#ifndef GRPCXX_TENSORFLOW_BUFFER_SERVICE_H_
#define GRPCXX_TENSORFLOW_BUFFER_SERVICE_H_

#include "grpcxx.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"

namespace grpcxx_tensorflow {

// Answers a request for a buffer of a collective (see kRecvBufHandle) and ends the responder. The producer may change
// its buffer as soon as the last byte has left, and not before.
void ServeBuffer(tensorflow::WorkerEnv* env, grpcxx_request* request, grpcxx_responder* responder);

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_BUFFER_SERVICE_H_
