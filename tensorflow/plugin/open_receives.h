#ifndef GRPCXX_TENSORFLOW_OPEN_RECEIVES_H_
#define GRPCXX_TENSORFLOW_OPEN_RECEIVES_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "grpcxx.h"

namespace grpcxx_tensorflow {

// A receive under way: counted and found by the page that tells what this process waits for, while it lives.
class OpenReceive {
 public:
  // `peer` and `key` outlive it.
  OpenReceive(const std::string& peer, int64_t step_id, const std::string& key);
  ~OpenReceive();
  OpenReceive(const OpenReceive&) = delete;
  OpenReceive& operator=(const OpenReceive&) = delete;

 private:
  friend struct OpenReceives;

  const std::string& peer_;
  const std::string& key_;
  const int64_t step_id_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  OpenReceive* before_ = nullptr;
  OpenReceive* behind_ = nullptr;
};

// Tells those of this process: a grpcxx_awaiting_fn.
void TellAwaited(void* user, grpcxx_awaited_fn awaited, void* into);

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_OPEN_RECEIVES_H_
