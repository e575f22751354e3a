#include "fuser.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "counters.h"
#include "receive.h"
#include "timer.h"

namespace grpcxx_tensorflow {
namespace {

// A tensor above this gains nothing from company, and would hold it up.
constexpr uint64_t kSharedBytesMax = 256 << 10;
// Peers of star take so many tensors in a frame whatever their age.
constexpr size_t kGroupMax = 250;
// Keys that are remembered for one peer, and as many old ones.
constexpr size_t kHistoriesMax = 1 << 16;
// A receive costs some 20 us alone: a group waits as long as others join it faster than that would be lost.
constexpr std::chrono::microseconds kGroupLookAfter(100);
constexpr int kGroupLooksMax = 10;
// Receives that are fewer lose more by waiting for each other than a shared request saves.
constexpr uint32_t kCompanyMin = 24;
// How long a key that was late, or had little company, goes alone before that is tried again.
constexpr uint32_t kAloneAfterLate = 8;
constexpr uint32_t kAloneAfterLateMax = 1 << 16;
constexpr uint32_t kAloneWithLittleCompany = 256;

// Receives that left together.
struct Sent {
  std::shared_ptr<Peer> peer;
  std::vector<TensorReceive*> receives;
};

grpcxx_status* Allocate(void* user, size_t index, const grpcxx_tensor_meta* meta, grpcxx_memory* memory) {
  return static_cast<Sent*>(user)->receives[index]->AllocateFor(*meta, memory);
}

void Done(void* user, const grpcxx_status* status, grpcxx_tensor* const* tensors, size_t) {
  const std::unique_ptr<Sent> sent(static_cast<Sent*>(user));
  for (size_t i = 0; i < sent->receives.size(); ++i) {
    if (status != nullptr) {
      sent->receives[i]->FailedTogether(status);
    } else {
      sent->receives[i]->ArrivedTogether(sent->peer, tensors[i]);
    }
  }
}

}  // namespace

bool Fuser::Offer(TensorReceive* receive, const std::shared_ptr<Peer>& peer) {
  const std::shared_ptr<KeyHistory>& history = receive->history();
  if (history == nullptr) return false;
  std::shared_ptr<Group> group;
  std::vector<TensorReceive*> full;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (history->size > kSharedBytesMax) return false;
    if (history->alone_for > 0) {
      --history->alone_for;
      return false;
    }
    for (const std::shared_ptr<Group>& open : groups_) {
      if (open->step_id == receive->step_id() && open->peer == peer) group = open;
    }
    const bool is_new = group == nullptr;
    if (is_new) {
      group = std::make_shared<Group>();
      group->step_id = receive->step_id();
      group->peer = peer;
      groups_.push_back(group);
    }
    group->receives.push_back(receive);
    group->histories.push_back(history);
    group->company_expected = std::max(group->company_expected, history->company);
    if (group->histories.size() == group->company_expected) {
      full = Close(group);
    } else if (group->receives.size() == kGroupMax) {
      full.swap(group->receives);
    }
    if (!is_new) group = nullptr;
  }
  if (group != nullptr) LookLater(group);
  if (!full.empty()) SendFused(peer, receive->step_id(), std::move(full));
  return true;
}

std::shared_ptr<KeyHistory> Fuser::History(const std::string& key) {
  // Is emptied without the lock.
  Histories forgotten;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = histories_.find(key);
  if (found != histories_.end()) return found->second;
  // Each iteration of a loop has keys of its own, which never come again.
  if (histories_.size() >= kHistoriesMax) {
    forgotten.swap(old_histories_);
    old_histories_.swap(histories_);
  }
  const auto old = old_histories_.find(key);
  auto history = old == old_histories_.end() ? std::make_shared<KeyHistory>() : old->second;
  histories_[key] = history;
  return history;
}

void Fuser::Arrived(KeyHistory& history, uint64_t size, bool with_others) {
  std::lock_guard<std::mutex> lock(mutex_);
  history.size = size;
  if (with_others) history.times_late = 0;
}

void Fuser::WasLate(KeyHistory& history) {
  std::lock_guard<std::mutex> lock(mutex_);
  history.alone_for = std::min(kAloneAfterLate << std::min(history.times_late, 16u), kAloneAfterLateMax);
  ++history.times_late;
  history.company = 0;
}

void Fuser::LookLater(const std::shared_ptr<Group>& group) {
  Timer::Instance().RunAfter(kGroupLookAfter, [self = shared_from_this(), group] { self->Look(group); });
}

void Fuser::Look(const std::shared_ptr<Group>& group) {
  std::vector<TensorReceive*> receives;
  bool is_closed = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::find(groups_.begin(), groups_.end(), group) == groups_.end()) return;
    const uint32_t size = group->histories.size();
    if (size != group->size_at_last_look && ++group->looks < kGroupLooksMax) {
      group->size_at_last_look = size;
    } else {
      receives = Close(group);
      is_closed = true;
    }
  }
  if (!is_closed) return LookLater(group);
  if (!receives.empty()) SendFused(group->peer, group->step_id, std::move(receives));
}

std::vector<TensorReceive*> Fuser::Close(const std::shared_ptr<Group>& group) {
  groups_.erase(std::find(groups_.begin(), groups_.end(), group));
  const uint32_t company = group->histories.size();
  for (const std::shared_ptr<KeyHistory>& history : group->histories) {
    history->company = company;
    if (company < kCompanyMin) history->alone_for = kAloneWithLittleCompany;
  }
  return std::move(group->receives);
}

void SendFused(const std::shared_ptr<Peer>& peer, int64_t step_id, std::vector<TensorReceive*> receives) {
  if (receives.size() == 1) return receives[0]->SendAlone(peer);
  Add(Count().fused_requests);
  Add(Count().fused_tensors, receives.size());
  std::vector<grpcxx_text> keys;
  keys.reserve(receives.size());
  grpcxx_call* call = grpcxx_call_new();
  for (TensorReceive* receive : receives) {
    keys.push_back({receive->key().data(), receive->key().size()});
    // A step that is given up is given up as a whole: the first cancel counts for all.
    receive->Adopt(call);
  }
  auto* sent = new Sent{peer, std::move(receives)};
  grpcxx_fuse_recv_tensor(peer->handle, call, step_id, keys.data(), keys.size(), nullptr, &Allocate, &Done, sent);
  grpcxx_call_release(call);
}

}  // namespace grpcxx_tensorflow
