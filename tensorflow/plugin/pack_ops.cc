// The ops that graph fusion puts into graphs. GrpcxxPack and GrpcxxPackVariables make packs, GrpcxxUnpack takes one
// apart. Their shapes are not known before they run; a pack says what is in it.

#include "pack_ops.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "counters.h"
#include "pack.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/platform/errors.h"

namespace grpcxx_tensorflow {
namespace {

using tensorflow::core::RefCountPtr;
using tensorflow::DataType;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorBuffer;
using tensorflow::TensorShape;
using tensorflow::Var;

// A part of a pack, which it keeps alive. It is a buffer of its own, so that an op may compute in it once nobody else
// needs this part.
class Part : public TensorBuffer {
 public:
  Part(TensorBuffer* pack, char* data, size_t bytes) : TensorBuffer(data), pack_(pack), bytes_(bytes) {
    pack_->Ref();
  }

  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription* description) const override {
    description->set_requested_bytes(bytes_);
    description->set_allocator_name("grpcxx_pack");
  }

 private:
  ~Part() override { pack_->Unref(); }

  TensorBuffer* const pack_;
  const size_t bytes_;
};

void MakePack(OpKernelContext* context, absl::Span<const Tensor> tensors) {
  Tensor* pack = nullptr;
  const int64_t bytes = PackBytes(tensors);
  OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({bytes}), &pack));
  WritePack(tensors, static_cast<char*>(tensorflow::DMAHelper::base(pack)));
  Add(Count().packed_tensors, tensors.size());
}

class PackOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    std::vector<Tensor> tensors;
    tensors.reserve(context->num_inputs());
    for (int i = 0; i < context->num_inputs(); ++i) {
      tensors.push_back(context->input(i));
      OP_REQUIRES(context, tensorflow::DataTypeCanUseMemcpy(tensors.back().dtype()),
                  absl::InvalidArgumentError(absl::StrCat("input ", i, " of ", name(), " cannot be packed: ",
                                                          tensorflow::DataTypeString(tensors.back().dtype()))));
    }
    MakePack(context, tensors);
  }
};

// Reads variables, first those whose handles it gets, then those that it knows by name.
class PackVariablesOp : public OpKernel {
 public:
  explicit PackVariablesOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("containers", &containers_));
    OP_REQUIRES_OK(context, context->GetAttr("names", &names_));
    OP_REQUIRES_OK(context, context->GetAttr("dtypes", &dtypes_));
    OP_REQUIRES(context,
                names_.size() == containers_.size() && num_inputs() + names_.size() == dtypes_.size(),
                absl::InvalidArgumentError(absl::StrCat(name(), " has ", num_inputs(), " handles, ", names_.size(),
                                                        " names, ", containers_.size(), " containers and ",
                                                        dtypes_.size(), " types")));
  }

  void Compute(OpKernelContext* context) override {
    std::vector<Tensor> tensors;
    tensors.reserve(dtypes_.size());
    for (int i = 0; i < context->num_inputs(); ++i) {
      const tensorflow::ResourceHandle& handle = tensorflow::HandleFromInput(context, i);
      RefCountPtr<Var> variable;
      const absl::Status found = tensorflow::LookupResource(context, handle, &variable);
      OP_REQUIRES_OK(context, Read(found, handle.name(), handle.container(), variable.get(), &tensors));
    }
    tensorflow::ResourceMgr* const variables = context->resource_manager();
    for (size_t i = 0; i < names_.size(); ++i) {
      const std::string& container = containers_[i].empty() ? variables->default_container() : containers_[i];
      Var* found_variable = nullptr;
      const absl::Status found = variables->Lookup<Var>(container, names_[i], &found_variable);
      const RefCountPtr<Var> variable(found_variable);
      OP_REQUIRES_OK(context, Read(found, names_[i], container, variable.get(), &tensors));
    }
    MakePack(context, tensors);
  }

 private:
  // What ReadVariableOp does. Whoever writes the variable meanwhile writes into new memory.
  absl::Status Read(const absl::Status& found, const std::string& variable_name, const std::string& container,
                    Var* variable, std::vector<Tensor>* tensors) const {
    if (!found.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("Could not find variable ", variable_name,
                       ". This could mean that the variable has been deleted. In TF1, it can also mean the variable "
                       "is uninitialized. Debug info: container=",
                       container, ", status error message=", found.message()));
    }
    const tensorflow::tf_shared_lock lock(*variable->mu());
    const Tensor& value = *variable->tensor();
    const DataType wanted = dtypes_[tensors->size()];
    if (value.dtype() != wanted) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Trying to read variable ", variable_name, " with wrong dtype. Expected ",
          tensorflow::DataTypeString(wanted), " got ", tensorflow::DataTypeString(value.dtype())));
    }
    if (!value.IsInitialized()) {
      return absl::FailedPreconditionError(absl::StrCat("The variable ", variable_name, " is uninitialized"));
    }
    // Sparse updates write where the value is, without asking whether somebody else holds it.
    tensors->push_back(variable->copy_on_read_mode.load() ? tensorflow::tensor::DeepCopy(value) : value);
    return absl::OkStatus();
  }

  std::vector<std::string> containers_, names_;
  tensorflow::DataTypeVector dtypes_;
};

class UnpackOp : public OpKernel {
 public:
  explicit UnpackOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("T", &dtypes_));
    OP_REQUIRES_OK(context, context->GetAttr("copies", &copies_));
    OP_REQUIRES(context, copies_.size() == dtypes_.size(),
                absl::InvalidArgumentError(absl::StrCat(name(), " has ", copies_.size(), " copies and ",
                                                        dtypes_.size(), " types")));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& pack = context->input(0);
    std::vector<PackedTensor> tensors;
    const auto bytes = pack.tensor_data();
    OP_REQUIRES_OK(context, ReadPack({bytes.data(), bytes.size()}, dtypes_, &tensors));
    // Nobody but this op uses the pack, so its parts may be written by who gets them.
    char* const data = const_cast<char*>(bytes.data());
    TensorBuffer* const buffer = tensorflow::DMAHelper::buffer(const_cast<Tensor*>(&pack));
    const bool is_aligned = reinterpret_cast<uintptr_t>(data) % kPackAlignment == 0;
    uint64_t num_copied = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const PackedTensor& tensor = tensors[i];
      if (is_aligned && !copies_[i]) {
        RefCountPtr<TensorBuffer> part(new Part(buffer, data + tensor.offset, tensor.bytes));
        context->set_output(i, Tensor(dtypes_[i], tensor.shape, std::move(part)));
        continue;
      }
      Tensor* copy = nullptr;
      OP_REQUIRES_OK(context, context->allocate_output(i, tensor.shape, &copy));
      if (tensor.bytes > 0) std::memcpy(tensorflow::DMAHelper::base(copy), data + tensor.offset, tensor.bytes);
      ++num_copied;
    }
    Add(Count().unpacked_tensors, tensors.size());
    Add(Count().unpacked_copied_tensors, num_copied);
  }

 private:
  tensorflow::DataTypeVector dtypes_;
  // Which tensors somebody may keep when the step has ended: in a copy, which does not keep the whole pack.
  std::vector<bool> copies_;
};

}  // namespace

// All are stateful, so that no other pass removes, moves or joins them.
void RegisterPackOps() {
  REGISTER_OP("GrpcxxPack")
      .Input("tensors: T")
      .Output("pack: uint8")
      .Attr("T: list(type) >= 1")
      .SetIsStateful()
      .SetShapeFn(tensorflow::shape_inference::UnknownShape);
  REGISTER_OP("GrpcxxPackVariables")
      .Input("handles: N * resource")
      .Output("pack: uint8")
      .Attr("N: int >= 0")
      .Attr("containers: list(string)")
      .Attr("names: list(string)")
      .Attr("dtypes: list(type) >= 1")
      .SetIsStateful()
      .SetShapeFn(tensorflow::shape_inference::UnknownShape);
  REGISTER_OP("GrpcxxUnpack")
      .Input("pack: uint8")
      .Output("tensors: T")
      .Attr("T: list(type) >= 1")
      .Attr("copies: list(bool)")
      .SetIsStateful()
      .SetShapeFn(tensorflow::shape_inference::UnknownShape);
  REGISTER_KERNEL_BUILDER(Name("GrpcxxPack").Device(tensorflow::DEVICE_CPU), PackOp);
  REGISTER_KERNEL_BUILDER(Name("GrpcxxPackVariables").Device(tensorflow::DEVICE_CPU), PackVariablesOp);
  REGISTER_KERNEL_BUILDER(Name("GrpcxxUnpack").Device(tensorflow::DEVICE_CPU), UnpackOp);
}

}  // namespace grpcxx_tensorflow
