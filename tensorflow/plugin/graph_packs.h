#ifndef GRPCXX_TENSORFLOW_GRAPH_PACKS_H_
#define GRPCXX_TENSORFLOW_GRAPH_PACKS_H_

#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "graph_members.h"
#include "graph_ops.h"
#include "tensorflow/core/graph/graph.h"

namespace grpcxx_tensorflow {

// Puts packs into a graph, in the place of edges.
class Packs {
 public:
  // `order` has each node behind its inputs.
  Packs(tensorflow::Graph* graph, const tensorflow::FunctionLibraryDefinition* functions,
        const std::vector<tensorflow::Node*>& order);

  // Lets the tensors of `members` travel in one pack. All come from one device and go to one device, and either all of
  // them are read from variables or none.
  absl::Status Add(const std::vector<Member>& members);

  // Removes what is no longer used.
  void Finish();

 private:
  absl::Status AddPack(const std::vector<Member>& members, tensorflow::Node** pack);
  absl::Status AddVariablesPack(const std::vector<Member>& members, std::vector<const Member*>* packed,
                                tensorflow::Node** pack);
  absl::Status AddUnpack(const std::vector<const Member*>& packed, tensorflow::Node* pack);
  // What came before the reading of a variable comes before the pack, and what came behind it behind the pack.
  void ReplaceRead(const Member& member, tensorflow::Node* pack);
  bool IsKept(const Member& member) const;
  void Place(tensorflow::Node* node, const tensorflow::Node& beside) const;

  tensorflow::Graph* const graph_;
  // By node: whether something on its device may keep its output, or what an op makes of it in the same memory.
  std::vector<bool> is_output_kept_;
  std::vector<bool> keeps_;
  // Handles of variables that are read by name.
  absl::flat_hash_set<tensorflow::Node*> handles_;
};

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_GRAPH_PACKS_H_
