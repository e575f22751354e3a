#include "pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "counters.h"
#include "tensor.h"
#include "timer.h"

namespace grpcxx_tensorflow {
namespace {

constexpr size_t kPageBytes = 64 << 10;
constexpr size_t kHugePageBytes = 2 << 20;
// A free block that nobody wanted for so long goes back to the system.
constexpr std::chrono::seconds kIdleMax(30);

size_t RoundUp(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

// Sizes that are nearly the same share blocks: at most an eighth is wasted.
size_t BlockSize(size_t size) {
  size_t unit = kPageBytes;
  while (unit * 16 <= size) unit *= 2;
  return RoundUp(RoundUp(size, unit), size >= kHugePageBytes ? kHugePageBytes : kPageBytes);
}

void* Map(size_t size) {
  const size_t alignment = size >= kHugePageBytes ? kHugePageBytes : kPageBytes;
  const size_t mapped = size + alignment;
  void* const whole = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (whole == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(whole);
  char* const data = reinterpret_cast<char*>(RoundUp(reinterpret_cast<uintptr_t>(begin), alignment));
  if (data > begin) munmap(begin, data - begin);
  if (begin + mapped > data + size) munmap(data + size, begin + mapped - (data + size));
  AdviseHugePages(data, size);
  return data;
}

}  // namespace

Pool& Pool::Instance() {
  // Tensors may live as long as the process.
  static Pool* const pool = new Pool;
  return *pool;
}

void Pool::SetRetainedBytesMax(size_t bytes) {
  Pool& pool = Instance();
  std::lock_guard<std::mutex> lock(pool.mutex_);
  pool.free_bytes_max_ = bytes;
}

void* Pool::AllocateRaw(size_t, size_t num_bytes) {
  const size_t size = BlockSize(num_bytes);
  void* data = TakeFree(size);
  if (data != nullptr) {
    Add(Count().pool_hits);
    return data;
  }
  Add(Count().pool_misses);
  data = Map(size);
  if (data == nullptr) return nullptr;
  std::lock_guard<std::mutex> lock(mutex_);
  used_[data] = size;
  return data;
}

void Pool::DeallocateRaw(void* data) {
  std::vector<FreeBlock> evicted;
  bool starts_evicting = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto used = used_.find(data);
    const size_t size = used->second;
    used_.erase(used);
    free_.push_front(FreeBlock{data, size, Clock::now()});
    free_bytes_ += size;
    while (free_bytes_ > free_bytes_max_) {
      evicted.push_back(free_.back());
      free_bytes_ -= free_.back().size;
      free_.pop_back();
    }
    starts_evicting = !is_evicting_ && !free_.empty();
    is_evicting_ |= starts_evicting;
  }
  for (const FreeBlock& block : evicted) munmap(block.data, block.size);
  if (starts_evicting) EvictLater();
}

void* Pool::TakeFree(size_t size) {
  std::lock_guard<std::mutex> lock(mutex_);
  // What was freed last is still warm.
  for (auto block = free_.begin(); block != free_.end(); ++block) {
    if (block->size != size) continue;
    void* const data = block->data;
    free_.erase(block);
    free_bytes_ -= size;
    used_[data] = size;
    return data;
  }
  return nullptr;
}

void Pool::EvictLater() {
  Timer::Instance().RunAfter(kIdleMax, [this] { Evict(); });
}

void Pool::Evict() {
  std::vector<FreeBlock> evicted;
  bool continues = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const Clock::time_point oldest = Clock::now() - kIdleMax;
    while (!free_.empty() && free_.back().since <= oldest) {
      evicted.push_back(free_.back());
      free_bytes_ -= free_.back().size;
      free_.pop_back();
    }
    continues = is_evicting_ = !free_.empty();
  }
  for (const FreeBlock& block : evicted) munmap(block.data, block.size);
  if (continues) EvictLater();
}

}  // namespace grpcxx_tensorflow
