#ifndef GRPCXX_TENSORFLOW_TENSOR_H_
#define GRPCXX_TENSORFLOW_TENSOR_H_

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "grpcxx.h"
#include "tensorflow/core/distributed_runtime/tensor_coding.h"
#include "tensorflow/core/framework/tensor.h"

namespace grpcxx_tensorflow {

// Makes a tensor of the engine out of one of TensorFlow.
//
// Numbers are lent: the engine holds a reference until the last byte has left. Strings, resources, variants, and
// numbers whose type or shape star cannot tell, travel as one serialized TensorProto, the latter two as a scalar
// variant, since the receiver takes type and shape from the TensorProto.
absl::Status Lend(const tensorflow::Tensor& value, bool is_dead, grpcxx_tensor** tensor);

// Whether making a tensor of the engine copies so much that a thread of the engine must not do it.
bool IsSlowToLend(const tensorflow::Tensor& value);

// Stands in a fused answer for a tensor that is not there yet; whoever asked asks for it again alone.
grpcxx_tensor* LateTensor();
bool IsLate(const grpcxx_tensor* tensor);

// Where one received tensor lands: in memory of the device that TensorFlow wants it on.
class Landing {
 public:
  // `has_plain_memory`: no device of this task wants memory of a special kind, so that the memory may be ours.
  Landing(tensorflow::TensorResponse* response, bool has_plain_memory)
      : response_(response), has_plain_memory_(has_plain_memory) {}

  // Chooses the memory; the callback `grpcxx_allocate_fn` calls this.
  absl::Status Allocate(const grpcxx_tensor_meta& meta, grpcxx_memory* memory);

  // Whether Finish has so much to decode that a thread of the engine must not do it.
  bool IsSlowToFinish() const { return serialized_size_ > kSlowBytes; }

  // Completes the response with what has arrived. `tensor` may be nullptr if Detach was called before.
  absl::Status Finish();

  // Takes over what is needed of `tensor`, which is only borrowed.
  void Detach(const grpcxx_tensor* tensor);

  // Bytes of data, and how many of them landed where they stay.
  size_t size() const { return size_; }
  size_t size_in_place() const { return in_place_ ? size_ : 0; }

 private:
  static constexpr size_t kSlowBytes = 64 << 10;

  absl::Status InitPartial(int32_t dtype, const int64_t* dims, size_t rank, bool is_dead);

  // Makes the tensor of the response, without content.
  absl::Status InitPlain(const grpcxx_tensor_meta& meta);

  tensorflow::TensorResponse* const response_;
  const bool has_plain_memory_;
  std::unique_ptr<char[]> serialized_;
  size_t serialized_size_ = 0;
  size_t size_ = 0;
  bool in_place_ = false;
  absl::Status status_;
};

// Asks the kernel to back fresh memory with huge pages if it is large: page faults cost more than the copy.
void AdviseHugePages(void* data, size_t size);

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_TENSOR_H_
