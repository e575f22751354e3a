// What the C++ programs of this folder share: arguments, times, and the JSON object that grpcxx bench prints too.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <time.h>

namespace bench {

using Clock = std::chrono::steady_clock;

struct Options {
  bool serve = false;
  std::string address, op = "latency";
  size_t size = 64, count = 1, connections = 1, depth = 1;
  double seconds = 1;

  bool pulls() const { return op != "push"; }
  bool pushes() const { return op == "push" || op == "ps"; }
};

[[noreturn]] inline void fail(const std::string& why) {
  fprintf(stderr, "%s\n", why.c_str());
  exit(1);
}

inline Options read(int argc, char** argv) {
  Options options;
  if (argc < 2) fail("usage: serve --listen ADDR | run --connect ADDR --op OP --size BYTES ...");
  options.serve = !strcmp(argv[1], "serve");
  for (int at = 2; at + 1 < argc; at += 2) {
    std::string name = argv[at], value = argv[at + 1];
    if (name == "--listen" || name == "--connect") options.address = value;
    else if (name == "--op") options.op = value;
    else if (name == "--size") options.size = std::stoull(value);
    else if (name == "--count") options.count = std::stoull(value);
    else if (name == "--connections") options.connections = std::stoull(value);
    else if (name == "--depth") options.depth = std::stoull(value);
    else if (name == "--seconds") options.seconds = std::stod(value);
    else fail("unknown option " + name);
  }
  return options;
}

// The head of each request: what the server shall do.
struct Head {
  uint64_t kind;  // 0: tensors come back, 1: tensors came, 2: tell your CPU time
  uint64_t size, count;
  uint64_t padding[5] = {};
};
static_assert(sizeof(Head) == 64, "a request without tensors has 64 bytes");

inline double cpu_seconds() {
  timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return used.tv_sec + used.tv_nsec / 1e9;
}

// Steps that begin after the warm-up are measured; no step begins after the end, once one was measured.
class Times {
 public:
  explicit Times(double seconds)
      : from_(Clock::now() + std::chrono::milliseconds(std::min<int64_t>(1000, std::max<int64_t>(50, seconds * 125)))),
        until_(from_ + std::chrono::microseconds(int64_t(seconds * 1e6))) {}

  bool is_over(Clock::time_point now) const { return now >= until_ && !times_.empty(); }
  bool has_begun(Clock::time_point now) const { return now >= from_; }

  void record(Clock::time_point begin, Clock::time_point end) {
    if (begin < from_) return;
    if (times_.empty() || begin < first_) first_ = begin;
    last_ = std::max(last_, end);
    times_.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(end - begin).count());
  }

  void print(const Options& options, const char* transport, const char* driver, double cpu_client, double cpu_server) {
    std::sort(times_.begin(), times_.end());
    auto at = [&](double part) {
      size_t index = std::min(times_.size() - 1, size_t(part * times_.size()));
      return times_[index] / 1e3;
    };
    double elapsed = std::chrono::duration<double>(last_ - first_).count();
    double steps = times_.size() / elapsed;
    int crossings = options.pulls() + options.pushes();
    printf("{\"op\":\"%s\",\"size\":%zu,\"count\":%zu,\"conns\":%zu,\"depth\":%zu,\"p50_us\":%.3f,\"p99_us\":%.3f,"
           "\"p999_us\":%.3f,\"req_per_s\":%.3f,\"gb_per_s\":%.3f,\"steps_per_s\":%.3f,\"cpu_s_client\":%.3f,"
           "\"cpu_s_server\":%.3f,\"transport\":\"%s\",\"driver\":\"%s\"}\n",
           options.op.c_str(), options.size, options.count, options.connections, options.depth, at(.5), at(.99),
           at(.999), steps * crossings, steps * crossings * options.size * options.count / 1e9, steps, cpu_client,
           cpu_server, transport, driver);
  }

 private:
  Clock::time_point from_, until_, first_{}, last_{};
  std::vector<int64_t> times_;
};

}  // namespace bench
