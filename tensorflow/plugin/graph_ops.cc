#include "graph_ops.h"

#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/types.h"

namespace grpcxx_tensorflow {
namespace {

using tensorflow::FunctionLibraryDefinition;
using tensorflow::Node;

// Updates of variables: they run to their end, and keep nothing of what they are given.
bool IsUpdate(absl::string_view op) {
  for (absl::string_view prefix :
       {"Apply", "SparseApply", "ResourceApply", "ResourceSparseApply", "Scatter", "ResourceScatter", "AssignAdd",
        "AssignSub"}) {
    if (absl::StartsWith(op, prefix)) return true;
  }
  return false;
}

// Other stateful ops that run to their end.
bool RunsToItsEnd(absl::string_view op) {
  static const auto* const kOps = new absl::flat_hash_set<absl::string_view>{
      "_Arg",           "_Retval",         "_Send",          "Assert",
      "AssignVariableOp", "DestroyResourceOp", "GrpcxxPack", "GrpcxxPackVariables",
      "GrpcxxUnpack",   "LookupTableFindV2", "Multinomial",  "RandomGamma",
      "RandomPoissonV2", "RandomShuffle",  "RandomStandardNormal", "RandomUniform",
      "RandomUniformInt", "ReadVariableOp", "ResourceGather", "ResourceGatherNd",
      "TruncatedNormal", "VarHandleOp",    "VarIsInitializedOp", "Variable",
      "VariableShape",  "VariableV2",
  };
  return kOps->contains(op);
}

// Ops without an effect that always compute into new memory.
bool TakesNewMemory(absl::string_view op) {
  static const auto* const kOps = new absl::flat_hash_set<absl::string_view>{
      "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "BiasAddGrad", "ConcatV2", "Conv2D",
      "Conv3D",      "GatherV2",      "MatMul",        "Rank",        "Shape",    "Size",
  };
  return kOps->contains(op);
}

// Whether an op runs a function, in which anything may be.
bool RunsFunction(const Node& node, const FunctionLibraryDefinition* functions) {
  if (functions != nullptr && functions->Contains(node.type_string())) return true;
  for (const auto& [name, value] : node.attrs()) {
    if (value.has_func() || value.list().func_size() > 0) return true;
  }
  return false;
}

bool HasRefInput(const Node& node) {
  for (const tensorflow::DataType type : node.input_types()) {
    if (tensorflow::IsRefType(type)) return true;
  }
  return false;
}

// Queues, barriers and accumulators of TensorFlow 1 are not called stateful. Their handles are references to strings.
bool HasOldHandle(const Node& node) {
  for (const tensorflow::DataType type : node.input_types()) {
    if (type == tensorflow::DT_STRING_REF) return true;
  }
  return false;
}

}  // namespace

bool MayWait(const Node& node, const FunctionLibraryDefinition* functions) {
  const std::string& op = node.type_string();
  if (node.op_def().is_stateful()) return !RunsToItsEnd(op) && !IsUpdate(op);
  return HasOldHandle(node) || op == "PyFuncStateless" || RunsFunction(node, functions);
}

bool MayShareMemory(const Node& node) {
  return !node.op_def().is_stateful() && !TakesNewMemory(node.type_string());
}

bool MayKeep(const Node& node, const FunctionLibraryDefinition* functions) {
  const std::string& op = node.type_string();
  if (IsUpdate(op) || op == "Assert") return false;
  // The value comes round again, and may reach anything in the loop.
  if (node.IsNextIteration()) return true;
  return node.op_def().is_stateful() || HasRefInput(node) || RunsFunction(node, functions);
}

}  // namespace grpcxx_tensorflow
