#ifndef GRPCXX_TENSORFLOW_STATUS_H_
#define GRPCXX_TENSORFLOW_STATUS_H_

#include <string>

#include "absl/status/status.h"
#include "grpcxx.h"

namespace grpcxx_tensorflow {

// A failure of the engine in TensorFlow's words. A text that begins with "[_Derived_]" becomes a derived status, which
// TensorFlow reports only if it finds no other cause.
absl::Status FromEngine(const grpcxx_status* status);

// As `FromEngine`, and ends the ownership of `status`.
absl::Status TakeFromEngine(grpcxx_status* status);

// A failure of a call to `target`, told as TensorFlow tells those of gRPC: its coordinators look for these words to
// find out which task is gone.
absl::Status FromPeer(const grpcxx_status* status, const std::string& target, const char* method);

// Answers a request with a failure.
void AnswerError(grpcxx_responder* responder, const absl::Status& status);

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_STATUS_H_
