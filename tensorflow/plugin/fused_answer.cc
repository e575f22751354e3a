#include "fused_answer.h"

#include <chrono>
#include <utility>

#include "counters.h"
#include "status.h"
#include "tensor.h"
#include "tensorflow/core/platform/threadpool.h"
#include "timer.h"

namespace grpcxx_tensorflow {
namespace {

// A tensor that is asked for again costs some 20 us; a producer that makes one in less is worth waiting for. A look
// without progress does not count alone: the producer may have lost its CPU for a moment.
constexpr std::chrono::microseconds kLookAfter(200);
constexpr int kLooksWithoutProgressMax = 3;
constexpr int kLooksMax = 25;

}  // namespace

FusedAnswer::FusedAnswer(tensorflow::WorkerEnv* env, LateTensors* late, grpcxx_responder* responder, int64_t step_id,
                         std::vector<std::string> keys)
    : env_(env), late_(late), responder_(responder), step_id_(step_id), keys_(std::move(keys)), slots_(keys_.size()) {}

void FusedAnswer::Arrived(size_t index, const absl::Status& status, const tensorflow::Tensor& value, bool is_dead) {
  bool leaves = false, looks = false;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (is_closed_) {
      lock.unlock();
      return late_->Arrived(step_id_, keys_[index], status, value, is_dead);
    }
    Slot& slot = slots_[index];
    slot.has_arrived = true;
    slot.value = value;
    slot.is_dead = is_dead;
    is_slow_ |= status.ok() && !is_dead && IsSlowToLend(value);
    failure_.Update(status);
    ++num_arrived_;
    if (num_arrived_ == slots_.size() || !failure_.ok()) {
      Close();
      leaves = true;
    } else if (is_all_asked_ && !is_looking_) {
      is_looking_ = looks = true;
    }
  }
  if (leaves) Leave();
  if (looks) LookLater();
}

void FusedAnswer::AllAsked() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_all_asked_ = true;
    // Without any there is nothing that could be held up.
    if (is_closed_ || is_looking_ || num_arrived_ == 0) return;
    is_looking_ = true;
  }
  LookLater();
}

void FusedAnswer::Look() {
  bool leaves = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_closed_) return;
    const bool has_progress = num_arrived_ != num_at_last_look_;
    num_at_last_look_ = num_arrived_;
    looks_without_progress_ = has_progress ? 0 : looks_without_progress_ + 1;
    leaves = looks_without_progress_ >= kLooksWithoutProgressMax || ++looks_ >= kLooksMax;
    if (leaves) Close();
  }
  leaves ? Leave() : LookLater();
}

void FusedAnswer::LookLater() {
  Timer::Instance().RunAfter(kLookAfter, [self = shared_from_this()] { self->Look(); });
}

void FusedAnswer::Close() {
  is_closed_ = true;
  // After a failure nobody asks again.
  if (!failure_.ok()) return;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].has_arrived) late_->Expect(step_id_, keys_[i]);
  }
}

void FusedAnswer::Leave() {
  if (is_slow_ && failure_.ok()) {
    return env_->compute_pool->Schedule([self = shared_from_this()] { self->Send(); });
  }
  Send();
}

void FusedAnswer::Send() {
  // Nobody changes the slots any more.
  absl::Status status = failure_;
  std::vector<grpcxx_tensor*> tensors;
  tensors.reserve(slots_.size());
  uint64_t bytes = 0;
  for (Slot& slot : slots_) {
    if (!status.ok()) break;
    grpcxx_tensor* tensor = nullptr;
    if (slot.has_arrived) {
      status = Lend(slot.value, slot.is_dead, &tensor);
      slot.value = tensorflow::Tensor();
    } else {
      tensor = grpcxx_tensor_retain(LateTensor());
    }
    if (!status.ok()) break;
    bytes += grpcxx_tensor_data_size(tensor);
    tensors.push_back(tensor);
  }
  if (status.ok()) {
    Add(Count().served_tensors, tensors.size());
    Add(Count().served_bytes, bytes);
    grpcxx_responder_answer_tensors(responder_, tensors.data(), tensors.size());
  } else {
    Add(Count().served_errors);
    AnswerError(responder_, status);
  }
  for (grpcxx_tensor* tensor : tensors) grpcxx_tensor_release(tensor);
}

}  // namespace grpcxx_tensorflow
