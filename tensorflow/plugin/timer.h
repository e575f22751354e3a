#ifndef GRPCXX_TENSORFLOW_TIMER_H_
#define GRPCXX_TENSORFLOW_TIMER_H_

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <queue>
#include <vector>

namespace grpcxx_tensorflow {

// Runs short pieces of code later, on one thread of its own for the whole process. They must not block.
class Timer {
 public:
  using Clock = std::chrono::steady_clock;

  // The timer of this process, which starts with its first use.
  static Timer& Instance();

  void RunAfter(Clock::duration delay, std::function<void()> code);

 private:
  struct Entry {
    Clock::time_point due;
    uint64_t number;
    std::function<void()> code;
    bool operator>(const Entry& other) const {
      return due != other.due ? due > other.due : number > other.number;
    }
  };

  Timer();
  void Loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> entries_;
  uint64_t next_number_ = 0;
};

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_TIMER_H_
