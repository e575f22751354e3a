#ifndef GRPCXX_TENSORFLOW_STEP_SERVICE_H_
#define GRPCXX_TENSORFLOW_STEP_SERVICE_H_

#include "grpcxx.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/distributed_runtime/worker_interface.h"

namespace grpcxx_tensorflow {

// Run a graph of a step, and clean a step up, for peers; both end the responder. On the compute pool, as over gRPC.
void ServeRunGraph(tensorflow::WorkerEnv* env, tensorflow::WorkerInterface* worker, grpcxx_request* request,
                   grpcxx_responder* responder);
void ServeCleanupGraph(tensorflow::WorkerEnv* env, tensorflow::WorkerInterface* worker, grpcxx_request* request,
                       grpcxx_responder* responder);

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_STEP_SERVICE_H_
