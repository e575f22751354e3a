#include "counters.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace grpcxx_tensorflow {

const char* FallbackName(Fallback reason) {
  switch (reason) {
    case Fallback::kNoPlugin:
      return "no_plugin";
    case Fallback::kUnreachable:
      return "unreachable";
    case Fallback::kDevice:
      return "device";
    case Fallback::kCalls:
      return "too_many_calls";
    case Fallback::kCount:
      break;
  }
  return "unknown";
}

std::string Counters::Json() const {
  const std::pair<const char*, const std::atomic<uint64_t>*> fields[] = {
      {"received_tensors", &received_tensors},
      {"received_bytes", &received_bytes},
      {"received_in_place_bytes", &received_in_place_bytes},
      {"receives_failed", &receives_failed},
      {"receives_cancelled", &receives_cancelled},
      {"received_buffers", &received_buffers},
      {"received_buffer_bytes", &received_buffer_bytes},
      {"fused_requests", &fused_requests},
      {"fused_tensors", &fused_tensors},
      {"fused_tensors_late", &fused_tensors_late},
      {"graph_packs", &graph_packs},
      {"graph_packed_tensors", &graph_packed_tensors},
      {"graph_packed_variables", &graph_packed_variables},
      {"packed_tensors", &packed_tensors},
      {"unpacked_tensors", &unpacked_tensors},
      {"unpacked_copied_tensors", &unpacked_copied_tensors},
      {"served_tensors", &served_tensors},
      {"served_bytes", &served_bytes},
      {"served_by_reference_bytes", &served_by_reference_bytes},
      {"served_undelivered", &served_undelivered},
      {"served_buffers", &served_buffers},
      {"served_buffer_bytes", &served_buffer_bytes},
      {"served_errors", &served_errors},
      {"step_calls", &step_calls},
      {"served_step_calls", &served_step_calls},
      {"fallback_step_calls", &fallback_step_calls},
      {"pool_hits", &pool_hits},
      {"pool_misses", &pool_misses},
      {"peers_over_star", &peers_over_star},
      {"tensors_lent", &tensors_lent},
      {"receives_open", &receives_open},
  };
  std::string json = "{";
  for (const auto& [name, value] : fields) absl::StrAppend(&json, "\"", name, "\": ", value->load(), ", ");
  for (int reason = 0; reason < static_cast<int>(Fallback::kCount); ++reason) {
    absl::StrAppend(&json, reason == 0 ? "" : ", ", "\"fallback_tensors_",
                    FallbackName(static_cast<Fallback>(reason)), "\": ", fallback_tensors[reason].load());
  }
  return json + "}";
}

Counters& Count() {
  // Threads of the engine count until the process is gone.
  static Counters* const counters = new Counters;
  return *counters;
}

}  // namespace grpcxx_tensorflow

// The counters of this process as JSON, cut to `capacity` bytes with the final NUL. Returns the whole length.
extern "C" __attribute__((visibility("default"))) size_t GrpcxxTensorFlowCounters(char* buffer, size_t capacity) {
  const std::string json = grpcxx_tensorflow::Count().Json();
  if (buffer != nullptr && capacity > 0) {
    const size_t length = json.size() < capacity - 1 ? json.size() : capacity - 1;
    std::memcpy(buffer, json.data(), length);
    buffer[length] = '\0';
  }
  return json.size();
}
