#ifndef GRPCXX_TENSORFLOW_POOL_H_
#define GRPCXX_TENSORFLOW_POOL_H_

#include <chrono>
#include <cstddef>
#include <deque>
#include <list>
#include <mutex>
#include <string>
#include <unordered_map>

#include "tensorflow/core/framework/allocator.h"

namespace grpcxx_tensorflow {

// Memory for large tensors, whether received or computed; small ones get theirs from TensorFlow's allocator.
//
// The system takes large memory back when it is freed, and hands it out again page by page, each filled with zeros:
// for a tensor that is received this costs more than the bytes themselves. So freed blocks stay here for the next
// tensor of about their size, up to a limit and for a while.
class Pool : public tensorflow::Allocator {
 public:
  // The pool of this process.
  static Pool& Instance();

  // How many bytes of free blocks are kept; 0 keeps none.
  void SetRetainedBytesMax(size_t bytes);
  size_t retained_bytes_max();

  std::string Name() override { return "grpcxx_pool"; }
  void* AllocateRaw(size_t alignment, size_t num_bytes) override;
  void DeallocateRaw(void* data) override;
  tensorflow::AllocatorMemoryType GetMemoryType() const override { return small_->GetMemoryType(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct FreeBlock {
    void* data;
    size_t size;
    Clock::time_point since;
  };

  // Free blocks, the one that was freed last in front.
  using FreeBlocks = std::list<FreeBlock>;

  Pool();
  void* TakeFree(size_t size);
  // Takes the oldest free block out.
  FreeBlock TakeOldest();
  void EvictLater();
  void Evict();

  tensorflow::Allocator* const small_;
  std::mutex mutex_;
  // The size of every block that is in use.
  std::unordered_map<void*, size_t> used_;
  FreeBlocks free_;
  // The free blocks of each size, the one that was freed last at the back.
  std::unordered_map<size_t, std::deque<FreeBlocks::iterator>> free_by_size_;
  size_t free_bytes_ = 0;
  size_t free_bytes_max_ = size_t{1} << 30;
  bool is_evicting_ = false;
};

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_POOL_H_
