#include "pack.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace grpcxx_tensorflow {
namespace {

using tensorflow::DataType;
using tensorflow::Tensor;
using tensorflow::TensorShape;

size_t Aligned(size_t bytes) { return (bytes + kPackAlignment - 1) / kPackAlignment * kPackAlignment; }

template <typename T>
char* Put(char* out, T value) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "packs are little-endian");
  std::memcpy(out, &value, sizeof(value));
  return out + sizeof(value);
}

// Takes numbers from the front of `rest`; false if there are too few bytes.
template <typename T>
bool Take(absl::string_view* rest, T* value) {
  if (rest->size() < sizeof(T)) return false;
  std::memcpy(value, rest->data(), sizeof(T));
  rest->remove_prefix(sizeof(T));
  return true;
}

size_t HeadBytes(absl::Span<const Tensor> tensors) {
  size_t bytes = sizeof(uint64_t);
  for (const Tensor& tensor : tensors) bytes += 2 * sizeof(uint32_t) + tensor.dims() * sizeof(int64_t);
  return bytes;
}

absl::Status IsCutOff(size_t index, size_t bytes) {
  return absl::InvalidArgumentError(
      absl::StrCat("a pack of ", bytes, " bytes was sent that ends before its tensor ", index, " does"));
}

absl::Status TakeShape(size_t index, uint32_t rank, size_t pack_bytes, absl::string_view* rest, TensorShape* shape) {
  if (rank > TensorShape::MaxDimensions()) {
    return absl::InvalidArgumentError(absl::StrCat("a pack was sent whose tensor ", index, " has ", rank,
                                                   " dimensions, allowed are ", TensorShape::MaxDimensions()));
  }
  std::vector<int64_t> dims(rank);
  for (int64_t& dim : dims) {
    if (!Take(rest, &dim)) return IsCutOff(index, pack_bytes);
  }
  return TensorShape::BuildTensorShape(dims, shape);
}

}  // namespace

size_t PackBytes(absl::Span<const Tensor> tensors) {
  size_t bytes = Aligned(HeadBytes(tensors));
  for (const Tensor& tensor : tensors) bytes += Aligned(tensor.TotalBytes());
  return bytes;
}

void WritePack(absl::Span<const Tensor> tensors, char* out) {
  char* const begin = out;
  // What lies between the tensors travels too, and must not show what was in this memory before.
  const auto pad = [begin, &out] {
    const size_t written = out - begin;
    std::memset(out, 0, Aligned(written) - written);
    out = begin + Aligned(written);
  };
  out = Put<uint64_t>(out, tensors.size());
  for (const Tensor& tensor : tensors) {
    out = Put<uint32_t>(out, tensor.dtype());
    out = Put<uint32_t>(out, tensor.dims());
    for (int i = 0; i < tensor.dims(); ++i) out = Put<int64_t>(out, tensor.dim_size(i));
  }
  pad();
  for (const Tensor& tensor : tensors) {
    const auto data = tensor.tensor_data();
    if (!data.empty()) std::memcpy(out, data.data(), data.size());
    out += data.size();
    pad();
  }
}

absl::Status ReadPack(absl::string_view pack, absl::Span<const DataType> types, std::vector<PackedTensor>* tensors) {
  absl::string_view rest = pack;
  uint64_t number = 0;
  if (!Take(&rest, &number) || number != types.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a pack of ", pack.size(), " bytes was sent with ", number,
                                                   " tensors, the graph has ", types.size()));
  }
  tensors->resize(types.size());
  for (size_t i = 0; i < types.size(); ++i) {
    PackedTensor& tensor = (*tensors)[i];
    uint32_t type = 0, rank = 0;
    if (!Take(&rest, &type) || !Take(&rest, &rank)) return IsCutOff(i, pack.size());
    if (type != types[i]) {
      return absl::InvalidArgumentError(absl::StrCat("a pack was sent whose tensor ", i, " has type ", type,
                                                     ", the graph has ", tensorflow::DataTypeString(types[i])));
    }
    absl::Status shaped = TakeShape(i, rank, pack.size(), &rest, &tensor.shape);
    if (!shaped.ok()) return shaped;
    const size_t element_bytes = tensorflow::DataTypeSize(types[i]);
    const uint64_t elements = tensor.shape.num_elements();
    if (element_bytes == 0 || elements > pack.size() / element_bytes) return IsCutOff(i, pack.size());
    tensor.bytes = elements * element_bytes;
  }
  size_t offset = Aligned(pack.size() - rest.size());
  for (size_t i = 0; i < tensors->size(); ++i) {
    PackedTensor& tensor = (*tensors)[i];
    tensor.offset = offset;
    if (offset > pack.size() || tensor.bytes > pack.size() - offset) return IsCutOff(i, pack.size());
    offset = Aligned(offset + tensor.bytes);
  }
  if (offset != pack.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pack of ", pack.size(), " bytes was sent whose tensors end at ", offset));
  }
  return absl::OkStatus();
}

}  // namespace grpcxx_tensorflow
