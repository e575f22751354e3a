// The ops that combine tensors of all ranks of a group. Each takes the group as a resource, so that a tf.function runs
// the ops of one group in the order of the program, and waits for the other ranks on a thread of the group.

#include "collective_ops.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "groups.h"
#include "status.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/util/overflow.h"

namespace grpcxx_tensorflow {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::DMAHelper;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::ResourceHandle;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// Names a group for the ops.
class GroupOp : public OpKernel {
 public:
  explicit GroupOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("key", &key_));
  }

  void Compute(OpKernelContext* context) override {
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &output));
    ResourceHandle handle;
    handle.set_device(context->device()->attributes().name());
    handle.set_container("grpcxx");
    handle.set_name(key_);
    output->scalar<ResourceHandle>()() = handle;
  }

 private:
  std::string key_;
};

void ReleaseTensor(void* tensor) { delete static_cast<Tensor*>(tensor); }
void ReleaseInput(void* tensor, bool) { ReleaseTensor(tensor); }

// The input as the engine has it, which holds a reference as long as others may read it.
absl::Status Lend(const Tensor& input, grpcxx_tensor** tensor) {
  const auto dims = input.shape().dim_sizes();
  auto* held = new Tensor(input);
  absl::Status status = TakeFromEngine(grpcxx_tensor_new(input.dtype(), dims.data(), dims.size(), /*is_dead=*/false,
                                                         DMAHelper::base(held), input.TotalBytes(), &ReleaseInput,
                                                         held, tensor));
  if (!status.ok()) delete held;
  return status;
}

// The memory of a result, which the engine holds as long as it may write there.
grpcxx_output Place(const Tensor& result) {
  grpcxx_output output = {};
  output.struct_size = sizeof(output);
  if (result.TotalBytes() == 0) return output;
  auto* held = new Tensor(result);
  output.data = DMAHelper::base(held);
  output.size = held->TotalBytes();
  output.release = &ReleaseTensor;
  output.context = held;
  return output;
}

class CollectiveOp : public AsyncOpKernel {
 public:
  explicit CollectiveOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    int tag = 0;
    OP_REQUIRES_OK(context, context->GetAttr("tag", &tag));
    // The ranks use the last one before the group begins.
    OP_REQUIRES(context, tag < UINT16_MAX,
                absl::InvalidArgumentError(absl::StrCat("the tag of ", name(), " is ", tag, "; tags go from 0 to ",
                                                        UINT16_MAX - 1)));
    tag_ = static_cast<uint16_t>(tag);
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const absl::StatusOr<std::shared_ptr<Group>> found = Group::Find(tensorflow::HandleFromInput(context, 0).name());
    OP_REQUIRES_OK_ASYNC(context, found.status(), done);
    const std::shared_ptr<Group>& group = *found;
    Tensor* result = nullptr;
    const absl::Status prepared = Prepare(*group, context, &result);
    const absl::Status started = group->Run(tag_, [this, context, prepared, result, done, group = group.get()] {
      const absl::Status status = prepared.ok() ? Combine(*group, context, result) : Refuse(*group, prepared);
      if (!status.ok()) context->SetStatus(status);
      done();
    });
    OP_REQUIRES_OK_ASYNC(context, started, done);
  }

 protected:
  uint16_t tag() const { return tag_; }

  // Makes the shape of what is brought that of the result. What cannot be divided the engine refuses.
  virtual absl::Status ToResult(const Group&, TensorShape*) const { return absl::OkStatus(); }

  // Blocks.
  virtual absl::Status Call(const Group& group, grpcxx_tensor* tensor, const grpcxx_output& output) const = 0;

  // Whether this rank gets a result.
  virtual bool IsAddressed(const Group&) const { return true; }

 private:
  // Memory for the result, if there is one.
  absl::Status Prepare(const Group& group, OpKernelContext* context, Tensor** result) const {
    if (num_outputs() == 0) return absl::OkStatus();
    TensorShape shape = context->input(1).shape();
    const absl::Status status = ToResult(group, &shape);
    return status.ok() ? context->allocate_output(0, shape, result) : status;
  }

  // Takes the place of the operation: else this rank's next one would meet what the others have called for this one.
  // Returns why it cannot be.
  absl::Status Refuse(const Group& group, const absl::Status& why) const {
    const absl::Status refused = TakeFromEngine(grpcxx_group_refuse(group.handle(), tag_));
    if (!refused.ok()) LOG(WARNING) << "grpc++: " << refused;
    return why;
  }

  absl::Status Combine(const Group& group, OpKernelContext* context, Tensor* result) const {
    grpcxx_tensor* tensor = nullptr;
    if (result != nullptr) {
      if (absl::Status lent = Lend(context->input(1), &tensor); !lent.ok()) return Refuse(group, lent);
    }
    grpcxx_output output = {};
    output.struct_size = sizeof(output);
    if (result != nullptr && IsAddressed(group)) {
      output = Place(*result);
    } else if (result != nullptr && result->TotalBytes() > 0) {
      std::memset(DMAHelper::base(result), 0, result->TotalBytes());
    }
    const absl::Status status = Call(group, tensor, output);
    grpcxx_tensor_release(tensor);
    return status;
  }

  uint16_t tag_ = 0;
};

// The operators in the order of their numbers.
constexpr const char* kReduceOps[] = {"sum", "mean", "min", "max", "prod"};
constexpr char kReduceOpsAttr[] = "op: {'sum', 'mean', 'min', 'max', 'prod'} = 'sum'";

int32_t ReduceOp(OpKernelConstruction* context) {
  std::string name;
  if (const absl::Status status = context->GetAttr("op", &name); !status.ok()) context->SetStatus(status);
  int32_t number = GRPCXX_SUM;
  for (const char* known : kReduceOps) {
    if (name == known) return number;
    ++number;
  }
  // TensorFlow lets no other name through.
  return 0;
}

uint32_t Root(OpKernelConstruction* context) {
  int root = 0;
  if (const absl::Status status = context->GetAttr("root", &root); !status.ok()) context->SetStatus(status);
  return static_cast<uint32_t>(root);
}

class AllReduceOp : public CollectiveOp {
 public:
  explicit AllReduceOp(OpKernelConstruction* context) : CollectiveOp(context), op_(ReduceOp(context)) {}

 protected:
  absl::Status Call(const Group& group, grpcxx_tensor* tensor, const grpcxx_output& output) const override {
    return TakeFromEngine(grpcxx_group_all_reduce(group.handle(), tag(), tensor, op_, &output, nullptr));
  }

 private:
  const int32_t op_;
};

class ReduceScatterOp : public CollectiveOp {
 public:
  explicit ReduceScatterOp(OpKernelConstruction* context) : CollectiveOp(context), op_(ReduceOp(context)) {}

 protected:
  absl::Status ToResult(const Group& group, TensorShape* shape) const override {
    if (shape->dims() == 0) return absl::OkStatus();
    return shape->SetDimWithStatus(0, shape->dim_size(0) / group.size());
  }
  absl::Status Call(const Group& group, grpcxx_tensor* tensor, const grpcxx_output& output) const override {
    return TakeFromEngine(grpcxx_group_reduce_scatter(group.handle(), tag(), tensor, op_, &output, nullptr));
  }

 private:
  const int32_t op_;
};

// The result at the root, zeros elsewhere.
class ReduceToRootOp : public CollectiveOp {
 public:
  explicit ReduceToRootOp(OpKernelConstruction* context)
      : CollectiveOp(context), op_(ReduceOp(context)), root_(Root(context)) {}

 protected:
  bool IsAddressed(const Group& group) const override { return group.rank() == root_; }
  absl::Status Call(const Group& group, grpcxx_tensor* tensor, const grpcxx_output& output) const override {
    return TakeFromEngine(grpcxx_group_reduce(group.handle(), tag(), tensor, op_, root_, &output, nullptr));
  }

 private:
  const int32_t op_;
  const uint32_t root_;
};

class BroadcastOp : public CollectiveOp {
 public:
  explicit BroadcastOp(OpKernelConstruction* context) : CollectiveOp(context), root_(Root(context)) {}

 protected:
  absl::Status Call(const Group& group, grpcxx_tensor* tensor, const grpcxx_output& output) const override {
    return TakeFromEngine(grpcxx_group_broadcast(group.handle(), tag(), tensor, root_, &output, nullptr));
  }

 private:
  const uint32_t root_;
};

class AllGatherOp : public CollectiveOp {
 public:
  using CollectiveOp::CollectiveOp;

 protected:
  absl::Status ToResult(const Group& group, TensorShape* shape) const override {
    if (shape->dims() == 0) return shape->AddDimWithStatus(group.size());
    // Negative if it is too long, which the shape then refuses.
    return shape->SetDimWithStatus(0, tensorflow::MultiplyWithoutOverflow(shape->dim_size(0), group.size()));
  }
  absl::Status Call(const Group& group, grpcxx_tensor* tensor, const grpcxx_output& output) const override {
    return TakeFromEngine(grpcxx_group_all_gather(group.handle(), tag(), tensor, &output, nullptr));
  }
};

class AllToAllOp : public CollectiveOp {
 public:
  using CollectiveOp::CollectiveOp;

 protected:
  absl::Status Call(const Group& group, grpcxx_tensor* tensor, const grpcxx_output& output) const override {
    return TakeFromEngine(grpcxx_group_all_to_all(group.handle(), tag(), tensor, &output, nullptr));
  }
};

class BarrierOp : public CollectiveOp {
 public:
  using CollectiveOp::CollectiveOp;

 protected:
  absl::Status Call(const Group& group, grpcxx_tensor*, const grpcxx_output&) const override {
    return TakeFromEngine(grpcxx_group_barrier(group.handle(), tag()));
  }
};

absl::Status SameShape(InferenceContext* context) {
  context->set_output(0, context->input(1));
  return absl::OkStatus();
}

// The first dimension, times `factor` or divided by it.
absl::Status ScaledShape(InferenceContext* context, bool is_divided) {
  int ranks = 1;
  if (absl::Status status = context->GetAttr("ranks", &ranks); !status.ok()) return status;
  const ShapeHandle shape = context->input(1);
  if (!context->RankKnown(shape)) {
    context->set_output(0, context->UnknownShape());
    return absl::OkStatus();
  }
  if (context->Rank(shape) == 0) {
    context->set_output(0, is_divided ? context->UnknownShape() : context->Vector(ranks));
    return absl::OkStatus();
  }
  DimensionHandle first = context->Dim(shape, 0);
  absl::Status status = is_divided ? context->Divide(first, ranks, /*evenly_divisible=*/true, &first)
                                   : context->Multiply(first, ranks, &first);
  ShapeHandle scaled;
  if (status.ok()) status = context->ReplaceDim(shape, 0, first, &scaled);
  if (status.ok()) context->set_output(0, scaled);
  return status;
}

absl::Status MultipliedShape(InferenceContext* context) { return ScaledShape(context, false); }
absl::Status DividedShape(InferenceContext* context) { return ScaledShape(context, true); }

constexpr char kTagAttr[] = "tag: int >= 0 = 0";
// The name of the group again: gradients ask their op for it.
constexpr char kKeyAttr[] = "key: string = ''";
constexpr char kRanksAttr[] = "ranks: int >= 1";
constexpr char kRootAttr[] = "root: int >= 0 = 0";
constexpr char kReducedAttr[] =
    "T: {half, bfloat16, float, double, int8, int16, int32, int64, uint8, uint16, uint32, uint64, complex64,"
    " complex128}";
constexpr char kMovedAttr[] =
    "T: {half, bfloat16, float, double, int8, int16, int32, int64, uint8, uint16, uint32, uint64, complex64,"
    " complex128, bool}";

}  // namespace

// All are stateful: none is removed, joined with another one, or run while a graph is made.
void RegisterCollectiveOps() {
  REGISTER_OP("GrpcxxGroup")
      .Output("group: resource")
      .Attr("key: string")
      .SetIsStateful()
      .SetShapeFn(tensorflow::shape_inference::ScalarShape);
  REGISTER_OP("GrpcxxAllReduce")
      .Input("group: resource")
      .Input("tensor: T")
      .Output("result: T")
      .Attr(kReducedAttr)
      .Attr(kReduceOpsAttr)
      .Attr(kTagAttr)
      .Attr(kKeyAttr)
      .SetIsStateful()
      .SetShapeFn(SameShape);
  REGISTER_OP("GrpcxxReduceScatter")
      .Input("group: resource")
      .Input("tensor: T")
      .Output("result: T")
      .Attr(kReducedAttr)
      .Attr(kReduceOpsAttr)
      .Attr(kRanksAttr)
      .Attr(kTagAttr)
      .Attr(kKeyAttr)
      .SetIsStateful()
      .SetShapeFn(DividedShape);
  REGISTER_OP("GrpcxxReduce")
      .Input("group: resource")
      .Input("tensor: T")
      .Output("result: T")
      .Attr(kReducedAttr)
      .Attr(kReduceOpsAttr)
      .Attr(kRootAttr)
      .Attr(kRanksAttr)
      .Attr(kTagAttr)
      .Attr(kKeyAttr)
      .SetIsStateful()
      .SetShapeFn(SameShape);
  REGISTER_OP("GrpcxxBroadcast")
      .Input("group: resource")
      .Input("tensor: T")
      .Output("result: T")
      .Attr(kMovedAttr)
      .Attr(kRootAttr)
      .Attr(kRanksAttr)
      .Attr(kTagAttr)
      .Attr(kKeyAttr)
      .SetIsStateful()
      .SetShapeFn(SameShape);
  REGISTER_OP("GrpcxxAllGather")
      .Input("group: resource")
      .Input("tensor: T")
      .Output("result: T")
      .Attr(kMovedAttr)
      .Attr(kRanksAttr)
      .Attr(kTagAttr)
      .Attr(kKeyAttr)
      .SetIsStateful()
      .SetShapeFn(MultipliedShape);
  REGISTER_OP("GrpcxxAllToAll")
      .Input("group: resource")
      .Input("tensor: T")
      .Output("result: T")
      .Attr(kMovedAttr)
      .Attr(kTagAttr)
      .Attr(kKeyAttr)
      .SetIsStateful()
      .SetShapeFn(SameShape);
  REGISTER_OP("GrpcxxBarrier")
      .Input("group: resource")
      .Attr(kTagAttr)
      .Attr(kKeyAttr)
      .SetIsStateful()
      .SetShapeFn(tensorflow::shape_inference::NoOutputs);
  REGISTER_KERNEL_BUILDER(Name("GrpcxxGroup").Device(tensorflow::DEVICE_CPU), GroupOp);
  REGISTER_KERNEL_BUILDER(Name("GrpcxxAllReduce").Device(tensorflow::DEVICE_CPU), AllReduceOp);
  REGISTER_KERNEL_BUILDER(Name("GrpcxxReduceScatter").Device(tensorflow::DEVICE_CPU), ReduceScatterOp);
  REGISTER_KERNEL_BUILDER(Name("GrpcxxReduce").Device(tensorflow::DEVICE_CPU), ReduceToRootOp);
  REGISTER_KERNEL_BUILDER(Name("GrpcxxBroadcast").Device(tensorflow::DEVICE_CPU), BroadcastOp);
  REGISTER_KERNEL_BUILDER(Name("GrpcxxAllGather").Device(tensorflow::DEVICE_CPU), AllGatherOp);
  REGISTER_KERNEL_BUILDER(Name("GrpcxxAllToAll").Device(tensorflow::DEVICE_CPU), AllToAllOp);
  REGISTER_KERNEL_BUILDER(Name("GrpcxxBarrier").Device(tensorflow::DEVICE_CPU), BarrierOp);
}

}  // namespace grpcxx_tensorflow
