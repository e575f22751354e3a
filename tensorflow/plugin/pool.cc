#include "pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "counters.h"
#include "tensor.h"
#include "timer.h"

namespace grpcxx_tensorflow {
namespace {

// Tensors below this are left to TensorFlow's allocator.
constexpr size_t kLeastBytes = 256 << 10;
// What blocks are aligned to, and their sizes a multiple of.
constexpr size_t kPageBytes = 64 << 10;
constexpr size_t kHugePageBytes = 2 << 20;
// A free block that nobody wanted for so long goes back to the system.
constexpr std::chrono::seconds kIdleMax(30);

size_t RoundUp(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

// Sizes that are nearly the same share blocks: at most an eighth is wasted.
size_t BlockSize(size_t size) {
  size_t unit = kPageBytes;
  while (unit * 16 <= size) unit *= 2;
  return RoundUp(RoundUp(size, unit), size >= 16 * kHugePageBytes ? kHugePageBytes : kPageBytes);
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

Pool::Pool() : small_(tensorflow::cpu_allocator()) {}

void Pool::SetRetainedBytesMax(size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  free_bytes_max_ = bytes;
}

size_t Pool::retained_bytes_max() {
  std::lock_guard<std::mutex> lock(mutex_);
  return free_bytes_max_;
}

void* Pool::AllocateRaw(size_t alignment, size_t num_bytes) {
  if (num_bytes < kLeastBytes || alignment > kPageBytes) return small_->AllocateRaw(alignment, num_bytes);
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
  // Most that is not ours shows by its address alone.
  if (reinterpret_cast<uintptr_t>(data) % kPageBytes != 0) return small_->DeallocateRaw(data);
  std::vector<FreeBlock> evicted;
  bool starts_evicting = false;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto used = used_.find(data);
    if (used == used_.end()) {
      lock.unlock();
      return small_->DeallocateRaw(data);
    }
    const size_t size = used->second;
    used_.erase(used);
    free_.push_front(FreeBlock{data, size, Clock::now()});
    free_by_size_[size].push_back(free_.begin());
    free_bytes_ += size;
    while (free_bytes_ > free_bytes_max_) evicted.push_back(TakeOldest());
    starts_evicting = !is_evicting_ && !free_.empty();
    is_evicting_ |= starts_evicting;
  }
  for (const FreeBlock& block : evicted) munmap(block.data, block.size);
  if (starts_evicting) EvictLater();
}

void* Pool::TakeFree(size_t size) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto blocks = free_by_size_.find(size);
  if (blocks == free_by_size_.end()) return nullptr;
  // What was freed last is still warm.
  const FreeBlocks::iterator block = blocks->second.back();
  blocks->second.pop_back();
  if (blocks->second.empty()) free_by_size_.erase(blocks);
  void* const data = block->data;
  free_.erase(block);
  free_bytes_ -= size;
  used_[data] = size;
  return data;
}

Pool::FreeBlock Pool::TakeOldest() {
  const FreeBlock oldest = free_.back();
  const auto blocks = free_by_size_.find(oldest.size);
  blocks->second.pop_front();
  if (blocks->second.empty()) free_by_size_.erase(blocks);
  free_.pop_back();
  free_bytes_ -= oldest.size;
  return oldest;
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
    while (!free_.empty() && free_.back().since <= oldest) evicted.push_back(TakeOldest());
    continues = is_evicting_ = !free_.empty();
  }
  for (const FreeBlock& block : evicted) munmap(block.data, block.size);
  if (continues) EvictLater();
}

}  // namespace grpcxx_tensorflow
