#ifndef GRPCXX_TENSORFLOW_PACK_H_
#define GRPCXX_TENSORFLOW_PACK_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace grpcxx_tensorflow {

// A pack: the bytes of several tensors, which travel as one tensor of uint8. All numbers are little-endian.
//
//   u64 number of tensors
//   for each tensor: u32 type, u32 rank, rank times i64 dimension
//   zeros up to a multiple of 64
//   for each tensor: its data, then zeros up to a multiple of 64
inline constexpr size_t kPackAlignment = 64;

// Where one tensor lies in a pack.
struct PackedTensor {
  tensorflow::TensorShape shape;
  size_t offset = 0;
  size_t bytes = 0;
};

// How long the pack of these tensors is.
size_t PackBytes(absl::Span<const tensorflow::Tensor> tensors);

// Writes the pack of these tensors to `out`, which has room for PackBytes.
void WritePack(absl::Span<const tensorflow::Tensor> tensors, char* out);

// Finds the tensors in a pack that a peer has sent. An error unless it has tensors of exactly these types, and ends
// where the last one does.
absl::Status ReadPack(absl::string_view pack, absl::Span<const tensorflow::DataType> types,
                      std::vector<PackedTensor>* tensors);

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_PACK_H_
