#include "tensor.h"

#include <sys/mman.h>

#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "counters.h"
#include "pool.h"
#include "status.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace grpcxx_tensorflow {
namespace {

using tensorflow::DMAHelper;
using tensorflow::RecvTensorResponse;
using tensorflow::Tensor;
using tensorflow::TensorProto;
using tensorflow::TensorShape;
using tensorflow::TensorShapeProto;

constexpr size_t kProtoBytesMax = std::numeric_limits<int32_t>::max();

// The shape image of a star record: six dimensions of 16 bits or three of 32.
constexpr int kNarrowRankMax = 6;
constexpr int64_t kNarrowDimensionMax = 65533;
constexpr int kWideRankMax = 3;
constexpr int64_t kWideDimensionMax = 4294967293;

constexpr int64_t kSlowElements = 512;

// A dead tensor that no executor makes.
constexpr int32_t kLateType = GRPCXX_QINT32;
constexpr int64_t kLateShape[] = {0, 23117};

struct Shape {
  explicit Shape(const TensorShape& shape) : rank(shape.dims()) {
    for (int i = 0; i < rank && i < 8; ++i) dims[i] = shape.dim_size(i);
  }
  bool Fits() const {
    if (rank > kNarrowRankMax) return false;
    int64_t largest = 0;
    for (int i = 0; i < rank; ++i) largest = std::max(largest, dims[i]);
    return largest <= kNarrowDimensionMax || (rank <= kWideRankMax && largest <= kWideDimensionMax);
  }
  int rank;
  int64_t dims[8];
};

void ReleaseLent(void* context, bool delivered) {
  delete static_cast<Tensor*>(context);
  Subtract(Count().tensors_lent);
  if (!delivered) Add(Count().served_undelivered);
}

void ReleaseSerialized(void* context, bool delivered) {
  delete static_cast<std::string*>(context);
  Subtract(Count().tensors_lent);
  if (!delivered) Add(Count().served_undelivered);
}

bool TravelsAsProto(int32_t dtype) {
  return dtype == GRPCXX_STRING || dtype == GRPCXX_RESOURCE || dtype == GRPCXX_VARIANT;
}

// Whether elements travel as they lie in memory to peers of every version. Newer types, such as float8, travel like
// variants.
bool IsPlain(int32_t dtype) { return dtype <= GRPCXX_UINT64 && grpcxx_dtype_size(dtype) != 0; }

// Refuses what this TensorFlow has no type for, and would stop the process at.
absl::Status CheckType(int32_t dtype) {
  if (TravelsAsProto(dtype) || tensorflow::DataTypeSize(static_cast<tensorflow::DataType>(dtype)) > 0) {
    return absl::OkStatus();
  }
  const char* name = grpcxx_dtype_name(dtype);
  return absl::InvalidArgumentError(absl::StrCat("a tensor of ", name == nullptr ? "an unknown type" : name,
                                                 " was sent, which this TensorFlow does not know; convert it first"));
}

absl::Status LendSerialized(const Tensor& value, const Shape& shape, grpcxx_tensor** tensor) {
  TensorProto proto;
  value.AsProtoTensorContent(&proto);
  if (proto.ByteSizeLong() > kProtoBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a tensor of type ", tensorflow::DataTypeString(value.dtype()), " and shape ", value.shape().DebugString(),
        " needs ", proto.ByteSizeLong(), " bytes as a message, the limit is ", kProtoBytesMax, "; split it"));
  }
  auto* serialized = new std::string;
  if (!proto.SerializeToString(serialized)) {
    delete serialized;
    return absl::InternalError("a tensor could not be serialized");
  }
  const bool keeps_shape = TravelsAsProto(value.dtype()) && shape.Fits();
  Add(Count().tensors_lent);
  absl::Status status = TakeFromEngine(grpcxx_tensor_new(
      keeps_shape ? static_cast<int32_t>(value.dtype()) : GRPCXX_VARIANT, shape.dims, keeps_shape ? shape.rank : 0,
      /*is_dead=*/false, serialized->data(), serialized->size(), &ReleaseSerialized, serialized, tensor));
  if (!status.ok()) {
    delete serialized;
    Subtract(Count().tensors_lent);
  }
  return status;
}

}  // namespace

absl::Status Lend(const Tensor& value, bool is_dead, grpcxx_tensor** tensor) {
  if (is_dead) {
    constexpr int64_t kNothing[] = {0};
    return TakeFromEngine(grpcxx_tensor_copy_new(GRPCXX_FLOAT32, kNothing, 1, true, nullptr, 0, tensor));
  }
  const Shape shape(value.shape());
  const int32_t dtype = value.dtype();
  const uint64_t size = value.TotalBytes();
  if (!IsPlain(dtype) || !shape.Fits()) return LendSerialized(value, shape, tensor);
  if (size == 0) {
    return TakeFromEngine(grpcxx_tensor_copy_new(dtype, shape.dims, shape.rank, false, nullptr, 0, tensor));
  }
  auto* held = new Tensor(value);
  Add(Count().tensors_lent);
  absl::Status status = TakeFromEngine(grpcxx_tensor_new(dtype, shape.dims, shape.rank, false, DMAHelper::base(held),
                                                         size, &ReleaseLent, held, tensor));
  if (status.ok()) {
    Add(Count().served_by_reference_bytes, size);
  } else {
    delete held;
    Subtract(Count().tensors_lent);
  }
  return status;
}

bool IsSlowToLend(const Tensor& value) {
  const Shape shape(value.shape());
  return (!IsPlain(value.dtype()) || !shape.Fits()) && value.NumElements() > kSlowElements;
}

grpcxx_tensor* LateTensor() {
  static grpcxx_tensor* const late = [] {
    grpcxx_tensor* tensor = nullptr;
    grpcxx_status_free(grpcxx_tensor_copy_new(kLateType, kLateShape, 2, true, nullptr, 0, &tensor));
    return tensor;
  }();
  return late;
}

bool IsLate(const grpcxx_tensor* tensor) {
  if (!grpcxx_tensor_is_dead(tensor) || grpcxx_tensor_dtype(tensor) != kLateType) return false;
  const int64_t* dims = grpcxx_tensor_dims(tensor);
  return grpcxx_tensor_rank(tensor) == 2 && dims[0] == kLateShape[0] && dims[1] == kLateShape[1];
}

absl::Status Landing::Allocate(const grpcxx_tensor_meta& meta, grpcxx_memory* memory) {
  if (meta.is_dead) return absl::OkStatus();
  size_ = meta.data_size;
  if (TravelsAsProto(meta.dtype)) {
    if (meta.data_size > kProtoBytesMax) {
      return absl::ResourceExhaustedError(absl::StrCat("a serialized tensor of ", meta.data_size,
                                                       " bytes was sent, the limit is ", kProtoBytesMax));
    }
    serialized_.reset(new (std::nothrow) char[meta.data_size]);
    if (serialized_ == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for a tensor of ", meta.data_size, " bytes"));
    }
    serialized_size_ = meta.data_size;
    memory->data = serialized_.get();
    return absl::OkStatus();
  }
  absl::Status status =
      has_plain_memory_ ? InitPlain(meta) : InitPartial(meta.dtype, meta.dims, meta.rank, false);
  if (!status.ok()) return status;
  Tensor& tensor = const_cast<Tensor&>(response_->tensor());
  void* base = tensor.IsInitialized() ? DMAHelper::base(&tensor) : nullptr;
  if (base == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for a tensor of ", meta.data_size, " bytes"));
  }
  if (tensor.TotalBytes() != meta.data_size) {
    return absl::InternalError(absl::StrCat("a tensor of shape ", tensor.shape().DebugString(), " was sent with ",
                                            meta.data_size, " bytes instead of ", tensor.TotalBytes()));
  }
  if (!has_plain_memory_) AdviseHugePages(base, meta.data_size);
  memory->data = base;
  in_place_ = true;
  return absl::OkStatus();
}

void Landing::Detach(const grpcxx_tensor* tensor) {
  if (in_place_ || serialized_ != nullptr) return;
  status_ = InitPartial(grpcxx_tensor_dtype(tensor), grpcxx_tensor_dims(tensor), grpcxx_tensor_rank(tensor),
                        grpcxx_tensor_is_dead(tensor));
}

absl::Status Landing::Finish() {
  if (serialized_ == nullptr) return status_;
  RecvTensorResponse message;
  const bool parsed =
      message.mutable_tensor()->ParseFromArray(serialized_.get(), static_cast<int>(serialized_size_));
  serialized_.reset();
  if (!parsed) return absl::InvalidArgumentError("a tensor was sent as bytes that are no TensorProto");
  return response_->InitFrom(&message);
}

absl::Status Landing::InitPartial(int32_t dtype, const int64_t* dims, size_t rank, bool is_dead) {
  const absl::Status known = CheckType(dtype);
  if (!known.ok()) return known;
  RecvTensorResponse meta;
  meta.set_is_dead(is_dead);
  TensorProto* proto = meta.mutable_tensor();
  proto->set_dtype(static_cast<tensorflow::DataType>(dtype));
  for (size_t i = 0; i < rank; ++i) proto->mutable_tensor_shape()->add_dim()->set_size(dims[i]);
  if (!TensorShape::IsValid(proto->tensor_shape())) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor was sent with a shape that cannot be: ", proto->tensor_shape().ShortDebugString()));
  }
  response_->InitPartial(meta, tensorflow::AllocationAttributes());
  return absl::OkStatus();
}

absl::Status Landing::InitPlain(const grpcxx_tensor_meta& meta) {
  absl::Status status = CheckType(meta.dtype);
  if (!status.ok()) return status;
  TensorShape shape;
  status = TensorShape::BuildTensorShape(absl::MakeConstSpan(meta.dims, meta.rank), &shape);
  if (!status.ok()) return status;
  // A response lets a tensor be set in no other way without a copy.
  const_cast<Tensor&>(response_->tensor()) =
      Tensor(&Pool::Instance(), static_cast<tensorflow::DataType>(meta.dtype), shape);
  return absl::OkStatus();
}

void AdviseHugePages(void* data, size_t size) {
  constexpr size_t kLargeBytes = 4 << 20;
  constexpr uintptr_t kHugePageBytes = 2 << 20;
  if (size < kLargeBytes) return;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + size) & ~(kHugePageBytes - 1);
  // Advice: where it cannot be followed, small pages do.
  if (begin < end) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace grpcxx_tensorflow
