#include "late_tensors.h"

#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "answer.h"
#include "status.h"

namespace grpcxx_tensorflow {

namespace {

constexpr std::chrono::minutes kForgottenAfter(30);
constexpr std::chrono::minutes kLookedThroughEvery(1);

}  // namespace

void LateTensors::DropForgotten() {
  const Clock::time_point now = Clock::now();
  if (now - looked_through_ < kLookedThroughEvery) return;
  looked_through_ = now;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const bool is_forgotten = entry->second.has_arrived && now - entry->second.arrived > kForgottenAfter;
    entry = is_forgotten ? entries_.erase(entry) : std::next(entry);
  }
  size_.store(entries_.size(), std::memory_order_release);
}

void LateTensors::Expect(int64_t step_id, const std::string& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  DropForgotten();
  entries_.try_emplace(Name(step_id, key));
  size_.store(entries_.size(), std::memory_order_release);
}

void LateTensors::Arrived(int64_t step_id, const std::string& key, const absl::Status& status,
                          const tensorflow::Tensor& value, bool is_dead) {
  grpcxx_responder* responder = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = entries_.find(Name(step_id, key));
    // The step is over.
    if (found == entries_.end()) return;
    Entry& entry = found->second;
    responder = entry.responder;
    if (responder == nullptr) {
      entry.has_arrived = true;
      entry.status = status;
      entry.value = value;
      entry.is_dead = is_dead;
      entry.arrived = Clock::now();
      return;
    }
    entries_.erase(found);
    size_.store(entries_.size(), std::memory_order_release);
  }
  AnswerTensor(env_, responder, status, value, is_dead);
}

bool LateTensors::Serve(int64_t step_id, absl::string_view key, grpcxx_responder* responder) {
  if (size_.load(std::memory_order_acquire) == 0) return false;
  Entry entry;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    DropForgotten();
    const auto found = entries_.find(Name(step_id, std::string(key)));
    if (found == entries_.end() || found->second.responder != nullptr) return false;
    if (!found->second.has_arrived) {
      found->second.responder = responder;
      return true;
    }
    entry = std::move(found->second);
    entries_.erase(found);
    size_.store(entries_.size(), std::memory_order_release);
  }
  AnswerTensor(env_, responder, entry.status, entry.value, entry.is_dead);
  return true;
}

void LateTensors::Cleanup(int64_t step_id) {
  if (size_.load(std::memory_order_acquire) == 0) return;
  std::vector<grpcxx_responder*> responders;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto entry = entries_.lower_bound(Name(step_id, std::string()));
    while (entry != entries_.end() && entry->first.first == step_id) {
      if (entry->second.responder != nullptr) responders.push_back(entry->second.responder);
      entry = entries_.erase(entry);
    }
    size_.store(entries_.size(), std::memory_order_release);
  }
  for (grpcxx_responder* responder : responders) {
    AnswerError(responder, absl::AbortedError(absl::StrCat("step ", step_id, " was cleaned up")));
  }
}

}  // namespace grpcxx_tensorflow
