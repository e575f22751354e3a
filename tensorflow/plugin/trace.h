#ifndef GRPCXX_TENSORFLOW_TRACE_H_
#define GRPCXX_TENSORFLOW_TRACE_H_

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
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

inline void AddArrival(Trace* trace, size_t bytes, absl::string_view medium) {
  trace->AppendMetadata([bytes, medium] {
    return tsl::profiler::TraceMeEncode({{"bytes", bytes}, {"medium", medium}});
  });
}

// The task that a key sends to: "/job:worker/replica:0/task:0".
inline absl::string_view TargetOf(absl::string_view key) {
  const std::vector<absl::string_view> parts = absl::StrSplit(key, ';');
  const absl::string_view device = parts.size() > 2 ? parts[2] : absl::string_view();
  return device.substr(0, device.find("/device:"));
}

// The moment in which a tensor is handed to the engine.
inline void TraceSend(absl::string_view key, const tensorflow::Tensor& value) {
  Trace::InstantActivity([&] {
    return tsl::profiler::TraceMeEncode("grpc++ send",
                                        {{"peer", TargetOf(key)}, {"key", key}, {"bytes", value.TotalBytes()}});
  });
}

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_TRACE_H_
