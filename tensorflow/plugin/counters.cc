#include "counters.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace grpcxx_tensorflow {

const char* FallbackName(Fallback reason) {
  switch (reason) {
    case Fallback::kNoPlugin:
      return "no_plugin";
    case Fallback::kUnreachable:
      return "unreachable";
    case Fallback::kNoAnswer:
      return "no_answer";
    case Fallback::kDevice:
      return "device";
    case Fallback::kCalls:
      return "too_many_calls";
    case Fallback::kSize:
      return "size";
    case Fallback::kNotAsked:
      return "not_asked";
    case Fallback::kCount:
      break;
  }
  return "unknown";
}

template <typename Tell>
void Counters::ForEach(Tell tell) const {
  const struct {
    const char* name;
    const std::atomic<uint64_t>* counter;
    bool is_gauge;
    const char* meaning;
  } rows[] = {
      {"received_tensors", &received_tensors, false, "Tensors received over star."},
      {"received_bytes", &received_bytes, false, "Bytes of tensors received over star."},
      {"received_in_place_bytes", &received_in_place_bytes, false,
       "Those of them that landed in TensorFlow's memory without a copy."},
      {"receives_failed", &receives_failed, false, "Receives over star that ended with an error."},
      {"receives_cancelled", &receives_cancelled, false, "Receives over star that TensorFlow cancelled."},
      {"received_buffers", &received_buffers, false, "Buffers of collectives received over star."},
      {"received_buffer_bytes", &received_buffer_bytes, false, "Bytes of buffers of collectives received over star."},
      {"fused_requests", &fused_requests, false, "Requests for several tensors."},
      {"fused_tensors", &fused_tensors, false, "Tensors asked for by such requests."},
      {"fused_tensors_late", &fused_tensors_late, false, "Those of them that came after the rest of their request."},
      {"graph_packs", &graph_packs, false, "Packs that graph fusion put into graphs here."},
      {"graph_packed_tensors", &graph_packed_tensors, false, "Tensors of graphs that share those packs."},
      {"graph_packed_variables", &graph_packed_variables, false, "Those of them that packs read from variables."},
      {"packed_tensors", &packed_tensors, false, "Tensors that steps packed here."},
      {"unpacked_tensors", &unpacked_tensors, false, "Tensors that steps unpacked here."},
      {"unpacked_copied_tensors", &unpacked_copied_tensors, false, "Those of them that got memory of their own."},
      {"served_tensors", &served_tensors, false, "Tensors sent over star."},
      {"served_bytes", &served_bytes, false, "Bytes of tensors sent over star."},
      {"served_by_reference_bytes", &served_by_reference_bytes, false,
       "Those of them that left from TensorFlow's memory without a copy."},
      {"served_undelivered", &served_undelivered, false, "Tensors whose answer never left."},
      {"served_buffers", &served_buffers, false, "Buffers of collectives sent over star."},
      {"served_buffer_bytes", &served_buffer_bytes, false, "Bytes of buffers of collectives sent over star."},
      {"served_errors", &served_errors, false, "Requests of peers answered with an error."},
      {"step_calls", &step_calls, false, "Calls over star that run or clean up graphs of other tasks."},
      {"served_step_calls", &served_step_calls, false, "Such calls of other tasks that were served here."},
      {"refused_plain", &refused_plain, false,
       "Calls that failed because TLS forbids to make them, or to answer them, over gRPC."},
      {"pool_hits", &pool_hits, false, "Large tensors whose memory came from the pool."},
      {"pool_misses", &pool_misses, false, "Large tensors whose memory was new."},
      {"peers_over_star", &peers_over_star, true, "Peers whose star port is known and answers."},
      {"tensors_lent", &tensors_lent, true, "Tensors that connections hold until they are sent."},
      {"receives_open", &receives_open, true, "Receives under way."},
  };
  for (const auto& row : rows) tell(row.name, row.meaning, row.is_gauge, row.counter->load());
  uint64_t steps = 0;
  for (int reason = 0; reason < static_cast<int>(Fallback::kCount); ++reason) {
    const char* const name = FallbackName(static_cast<Fallback>(reason));
    tell(absl::StrCat("fallback_tensors_", name).c_str(), "Tensors that took gRPC for this reason.", false,
         fallback_tensors[reason].load());
    tell(absl::StrCat("fallback_step_calls_", name).c_str(),
         "Calls that run or clean up graphs and took gRPC for this reason.", false, fallback_step_calls[reason].load());
    steps += fallback_step_calls[reason].load();
  }
  tell("fallback_step_calls", "Calls that run or clean up graphs of other tasks and took gRPC.", false, steps);
}

std::string Counters::Json() const {
  std::string json;
  ForEach([&json](const char* name, const char*, bool, uint64_t value) {
    absl::StrAppend(&json, json.empty() ? "{" : ", ", "\"", name, "\": ", value);
  });
  return json + "}";
}

void TellMetrics(void*, grpcxx_metric_fn metric, void* into) {
  Count().ForEach([metric, into](const char* name, const char* meaning, bool is_gauge, uint64_t value) {
    metric(into, absl::StrCat("tensorflow_", name).c_str(), meaning, is_gauge, value);
  });
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
