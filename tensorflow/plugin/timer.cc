#include "timer.h"

#include <pthread.h>

#include <thread>
#include <utility>

namespace grpcxx_tensorflow {

Timer& Timer::Instance() {
  // Its thread runs until the process is gone.
  static Timer* const timer = new Timer;
  return *timer;
}

Timer::Timer() {
  std::thread thread([this] { Loop(); });
  pthread_setname_np(thread.native_handle(), "grpcxx-timer");
  thread.detach();
}

void Timer::RunAfter(Clock::duration delay, std::function<void()> code) {
  const Clock::time_point due = Clock::now() + delay;
  std::lock_guard<std::mutex> lock(mutex_);
  const bool is_first = entries_.empty() || due < entries_.top().due;
  entries_.push(Entry{due, next_number_++, std::move(code)});
  if (is_first) changed_.notify_one();
}

void Timer::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    if (entries_.empty()) {
      changed_.wait(lock);
    } else if (const Clock::time_point due = entries_.top().due; Clock::now() < due) {
      changed_.wait_until(lock, due);
    } else {
      std::function<void()> code = std::move(const_cast<Entry&>(entries_.top()).code);
      entries_.pop();
      lock.unlock();
      code();
      code = nullptr;
      lock.lock();
    }
  }
}

}  // namespace grpcxx_tensorflow
