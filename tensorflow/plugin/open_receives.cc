#include "open_receives.h"

#include <cstddef>
#include <functional>
#include <mutex>
#include <vector>

#include "counters.h"

namespace grpcxx_tensorflow {

// A part of the receives of this process: threads that begin and end receives seldom meet in one.
struct OpenReceives {
  // A cache line each, and the next.
  alignas(128) std::mutex mutex;
  OpenReceive* first = nullptr;

  static constexpr size_t kParts = 16;
  static constexpr size_t kShown = 1000;
  static OpenReceives& Part(size_t part) {
    // Receives may end while the process does.
    static OpenReceives* const parts = new OpenReceives[kParts];
    return parts[part];
  }
  static OpenReceives& Of(const OpenReceive* receive) {
    return Part((reinterpret_cast<uintptr_t>(receive) >> 8) % kParts);
  }

  void Add(OpenReceive* receive) {
    std::lock_guard<std::mutex> lock(mutex);
    receive->behind_ = first;
    if (first != nullptr) first->before_ = receive;
    first = receive;
  }

  void Remove(OpenReceive* receive) {
    std::lock_guard<std::mutex> lock(mutex);
    (receive->before_ == nullptr ? first : receive->before_->behind_) = receive->behind_;
    if (receive->behind_ != nullptr) receive->behind_->before_ = receive->before_;
  }

  // What a page shows of a receive.
  struct Seen {
    std::string peer;
    std::string key;
    int64_t step_id;
    std::chrono::steady_clock::time_point begin;
  };

  // Copies, since who is told may take its time, and receives that end would wait for it.
  std::vector<Seen> See() {
    std::vector<Seen> seen;
    std::lock_guard<std::mutex> lock(mutex);
    for (const OpenReceive* one = first; one != nullptr && seen.size() < kShown; one = one->behind_) {
      seen.push_back({one->peer_, one->key_, one->step_id_, one->begin_});
    }
    return seen;
  }

  void Tell(grpcxx_awaited_fn awaited, void* into) {
    const auto now = std::chrono::steady_clock::now();
    for (const Seen& one : See()) {
      const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(now - one.begin);
      awaited(into, one.peer.data(), one.peer.size(), one.step_id, one.key.data(), one.key.size(),
              age.count() < 0 ? 0 : static_cast<uint64_t>(age.count()));
    }
  }
};

OpenReceive::OpenReceive(const std::string& peer, int64_t step_id, const std::string& key)
    : peer_(peer), key_(key), step_id_(step_id) {
  Add(Count().receives_open);
  OpenReceives::Of(this).Add(this);
}

OpenReceive::~OpenReceive() {
  OpenReceives::Of(this).Remove(this);
  Subtract(Count().receives_open);
}

void TellAwaited(void*, grpcxx_awaited_fn awaited, void* into) {
  for (size_t part = 0; part < OpenReceives::kParts; ++part) OpenReceives::Part(part).Tell(awaited, into);
}

}  // namespace grpcxx_tensorflow
