#ifndef GRPCXX_TENSORFLOW_GRAPH_SIZES_H_
#define GRPCXX_TENSORFLOW_GRAPH_SIZES_H_

#include <cstdint>
#include <memory>

#include "tensorflow/core/common_runtime/shape_refiner.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/graph/graph.h"

namespace grpcxx_tensorflow {

// How many bytes the outputs of a graph's nodes have, as far as their shapes are known before the graph runs.
class Sizes {
 public:
  Sizes(const tensorflow::Graph& graph, const tensorflow::FunctionLibraryDefinition* functions)
      : graph_(graph), functions_(functions) {}

  // Of an output; -1 if it is not known.
  int64_t Of(const tensorflow::Node& node, int output);

 private:
  void Infer();

  const tensorflow::Graph& graph_;
  const tensorflow::FunctionLibraryDefinition* const functions_;
  std::unique_ptr<tensorflow::ShapeRefiner> shapes_;
};

// Writes sizes into a graph whose nodes are placed, for the time when it has been cut to what a step feeds and fetches:
// what is fed has lost its shape by then, and so has what is computed from it.
void NoteSizes(tensorflow::Graph* graph, const tensorflow::FunctionLibraryDefinition* functions);

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_GRAPH_SIZES_H_
