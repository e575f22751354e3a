#ifndef GRPCXX_TENSORFLOW_GRAPH_OPS_H_
#define GRPCXX_TENSORFLOW_GRAPH_OPS_H_

#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/graph/graph.h"

namespace grpcxx_tensorflow {

// What graph fusion has to know about ops. What is not known here counts as the worst.

// Whether an op may wait for anything but its inputs: for a feed, a queue, another task, the end of a loop.
bool MayWait(const tensorflow::Node& node, const tensorflow::FunctionLibraryDefinition* functions);

// Whether what an op computes may lie in the memory of one of its inputs.
bool MayShareMemory(const tensorflow::Node& node);

// Whether an op may hold one of its inputs when the step has ended.
bool MayKeep(const tensorflow::Node& node, const tensorflow::FunctionLibraryDefinition* functions);

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_GRAPH_OPS_H_
