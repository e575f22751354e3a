#ifndef GRPCXX_TENSORFLOW_POOL_H_
#define GRPCXX_TENSORFLOW_POOL_H_

#include <chrono>
#include <cstddef>
#include <list>
#include <mutex>
#include <string>
#include <unordered_map>

#include "tensorflow/core/framework/allocator.h"

namespace grpcxx_tensorflow {

// Memory for large tensors that are received step by step.
//
// The system takes large memory back when it is freed, and hands it out again page by page, each filled with zeros:
// for a tensor that is received this costs more than the bytes themselves. So freed blocks stay here for the next
// tensor of about their size, up to a limit and for a while.
class Pool : public tensorflow::Allocator {
 public:
  // Tensors below this are the business of TensorFlow's allocator.
  static constexpr size_t kLeastBytes = 256 << 10;

  // That of this process. `retained_bytes_max` counts at the first use.
  static Pool& Instance();
  // How many bytes of free blocks are kept, for this process; 0 keeps none.
  static void SetRetainedBytesMax(size_t bytes);

  std::string Name() override { return "grpcxx_pool"; }
  void* AllocateRaw(size_t alignment, size_t num_bytes) override;
  void DeallocateRaw(void* data) override;

 private:
  using Clock = std::chrono::steady_clock;
  struct FreeBlock {
    void* data;
    size_t size;
    Clock::time_point since;
  };

  void* TakeFree(size_t size);
  void EvictLater();
  void Evict();

  std::mutex mutex_;
  // The size of every block that is in use.
  std::unordered_map<void*, size_t> used_;
  // The one that was freed last comes first.
  std::list<FreeBlock> free_;
  size_t free_bytes_ = 0;
  size_t free_bytes_max_ = size_t{1} << 30;
  bool is_evicting_ = false;
};

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_POOL_H_
