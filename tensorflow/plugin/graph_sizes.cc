#include "graph_sizes.h"

#include <vector>

#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/algorithm.h"

namespace grpcxx_tensorflow {
namespace {

using tensorflow::Edge;
using tensorflow::Node;

// One number for each output of a node.
constexpr char kBytes[] = "_grpcxx_bytes";

bool HasEdgeToAnotherDevice(const Node& node) {
  for (const Edge* edge : node.out_edges()) {
    if (!edge->IsControlEdge() && edge->dst()->assigned_device_name() != node.assigned_device_name()) return true;
  }
  return false;
}

}  // namespace

int64_t Sizes::Of(const Node& node, int output) {
  std::vector<int64_t> noted;
  if (tensorflow::TryGetNodeAttr(node.attrs(), kBytes, &noted) && output < noted.size() && noted[output] >= 0) {
    return noted[output];
  }
  if (shapes_ == nullptr) Infer();
  tensorflow::shape_inference::InferenceContext* const context = shapes_->GetContext(&node);
  if (context == nullptr || output >= context->num_outputs()) return -1;
  const tensorflow::shape_inference::ShapeHandle shape = context->output(output);
  if (!context->FullyDefined(shape)) return -1;
  const int64_t element_bytes = tensorflow::DataTypeSize(tensorflow::BaseType(node.output_type(output)));
  const int64_t elements = context->Value(context->NumElements(shape));
  return element_bytes == 0 || elements > INT64_MAX / element_bytes ? -1 : elements * element_bytes;
}

void Sizes::Infer() {
  shapes_ = std::make_unique<tensorflow::ShapeRefiner>(graph_.versions(), graph_.op_registry());
  shapes_->set_require_shape_inference_fns(false);
  // It would run parts of the graph.
  shapes_->set_disable_constant_propagation(true);
  shapes_->set_function_library_for_shape_inference(functions_);
  std::vector<Node*> order;
  tensorflow::GetReversePostOrder(graph_, &order, tensorflow::NodeComparatorID(),
                                  [](const Edge& edge) { return !edge.src()->IsNextIteration(); });
  for (const Node* node : order) {
    // What cannot be inferred stays unknown, as all that follows from it.
    if (node->IsOp()) (void)shapes_->AddNode(node).ok();
  }
}

void NoteSizes(tensorflow::Graph* graph, const tensorflow::FunctionLibraryDefinition* functions) {
  Sizes sizes(*graph, functions);
  for (Node* node : graph->op_nodes()) {
    if (!HasEdgeToAnotherDevice(*node)) continue;
    std::vector<int64_t> bytes;
    for (int output = 0; output < node->num_outputs(); ++output) bytes.push_back(sizes.Of(*node, output));
    node->AddAttr(kBytes, bytes);
  }
}

}  // namespace grpcxx_tensorflow
