#ifndef GRPCXX_TENSORFLOW_COUNTERS_H_
#define GRPCXX_TENSORFLOW_COUNTERS_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "grpcxx.h"

namespace grpcxx_tensorflow {

// Why a call, or all calls to a peer, take the way through gRPC.
enum class Fallback {
  kNoPlugin,     // the peer does not know grpc++
  kUnreachable,  // the peer's star port does not answer
  kNoAnswer,     // the peer does not answer when it is asked for its star port
  kDevice,       // the destination is not memory of the CPU
  kCalls,        // too many calls to this peer are under way
  kSize,         // the request of the step is too large
  kNotAsked,     // the peer has not been asked for its star port yet, for which a step does not wait
  kCount,
};

// The words of a reason for logs and for the names of counters.
const char* FallbackName(Fallback reason);

// What the plugin has done in this process. Read them as JSON with GrpcxxTensorFlowCounters.
struct Counters {
  std::atomic<uint64_t> received_tensors{0};
  std::atomic<uint64_t> received_bytes{0};
  std::atomic<uint64_t> received_in_place_bytes{0};
  std::atomic<uint64_t> receives_failed{0};
  std::atomic<uint64_t> receives_cancelled{0};
  std::atomic<uint64_t> received_buffers{0};
  std::atomic<uint64_t> received_buffer_bytes{0};
  std::atomic<uint64_t> fused_requests{0};
  std::atomic<uint64_t> fused_tensors{0};
  std::atomic<uint64_t> fused_tensors_late{0};
  std::atomic<uint64_t> graph_packs{0};
  std::atomic<uint64_t> graph_packed_tensors{0};
  std::atomic<uint64_t> graph_packed_variables{0};
  std::atomic<uint64_t> packed_tensors{0};
  std::atomic<uint64_t> unpacked_tensors{0};
  std::atomic<uint64_t> unpacked_copied_tensors{0};
  std::atomic<uint64_t> served_tensors{0};
  std::atomic<uint64_t> served_bytes{0};
  std::atomic<uint64_t> served_by_reference_bytes{0};
  std::atomic<uint64_t> served_undelivered{0};
  std::atomic<uint64_t> served_buffers{0};
  std::atomic<uint64_t> served_buffer_bytes{0};
  std::atomic<uint64_t> served_errors{0};
  std::atomic<uint64_t> step_calls{0};
  std::atomic<uint64_t> served_step_calls{0};
  std::atomic<uint64_t> refused_plain{0};
  std::atomic<uint64_t> pool_hits{0};
  std::atomic<uint64_t> pool_misses{0};
  std::atomic<uint64_t> peers_over_star{0};
  std::atomic<uint64_t> tensors_lent{0};
  std::atomic<uint64_t> receives_open{0};
  std::atomic<uint64_t> fallback_tensors[static_cast<int>(Fallback::kCount)] = {};
  std::atomic<uint64_t> fallback_step_calls[static_cast<int>(Fallback::kCount)] = {};

  void TensorFell(Fallback reason) { Fell(fallback_tensors, reason); }
  void StepFell(Fallback reason) { Fell(fallback_step_calls, reason); }

  // Calls `tell` with the name, the meaning, whether it is a gauge, and the value of each.
  template <typename Tell>
  void ForEach(Tell tell) const;
  std::string Json() const;

 private:
  static void Fell(std::atomic<uint64_t>* counters, Fallback reason) {
    counters[static_cast<int>(reason)].fetch_add(1, std::memory_order_relaxed);
  }
};

// Tells those of this process to a metrics page: a grpcxx_metrics_fn.
void TellMetrics(void* user, grpcxx_metric_fn metric, void* into);

// Those of this process.
Counters& Count();

inline void Add(std::atomic<uint64_t>& counter, uint64_t amount = 1) {
  counter.fetch_add(amount, std::memory_order_relaxed);
}
inline void Subtract(std::atomic<uint64_t>& counter, uint64_t amount = 1) {
  counter.fetch_sub(amount, std::memory_order_relaxed);
}

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_COUNTERS_H_
