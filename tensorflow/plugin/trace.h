#ifndef GRPCXX_TENSORFLOW_TRACE_H_
#define GRPCXX_TENSORFLOW_TRACE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/tensor.h"
#include "tsl/profiler/lib/traceme.h"
#include "tsl/profiler/lib/traceme_encode.h"

namespace grpcxx_tensorflow {

// Events for TensorFlow's profiler. While nobody profiles they cost the reading of one flag.
using Trace = tsl::profiler::TraceMe;

// The receiving of a tensor, from its request to its arrival.
inline Trace TraceReceive(const std::string& peer, const std::string& key) {
  return Trace([&] { return tsl::profiler::TraceMeEncode("grpc++ receive", {{"peer", peer}, {"key", key}}); });
}

inline void AddBytes(Trace* trace, size_t bytes) {
  trace->AppendMetadata([bytes] { return tsl::profiler::TraceMeEncode({{"bytes", bytes}}); });
}

// The moment in which a tensor is handed to the engine.
inline void TraceSend(absl::string_view key, const tensorflow::Tensor& value) {
  Trace::InstantActivity([&] {
    return tsl::profiler::TraceMeEncode("grpc++ send", {{"key", key}, {"bytes", value.TotalBytes()}});
  });
}

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_TRACE_H_
