#ifndef GRPCXX_TENSORFLOW_GRAPH_WAITS_H_
#define GRPCXX_TENSORFLOW_GRAPH_WAITS_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/graph/graph.h"

namespace grpcxx_tensorflow {

// What the outputs of nodes wait for, beyond the work of their ancestors: ops that may wait, and the branches of
// conditions that must be taken.
//
// Outputs with the same set become ready together, whatever else happens in the step. So a pack of them makes none wait
// for anything that it did not wait for before, and nothing can come to wait for itself: queues, feeds of partial runs
// and loops stay as safe as they were. An output whose set has no condition is never dead.
class Waits {
 public:
  // Stands for a set with too many members to tell sets apart.
  static constexpr int kUnknown = 0;

  // `order` has each node behind its inputs, but for the values that come round in loops.
  Waits(const std::vector<tensorflow::Node*>& order, int num_node_ids,
        const tensorflow::FunctionLibraryDefinition* functions);

  // The number of the set of an output.
  int Of(const tensorflow::Node& node, int output) const;
  // Whether the outputs with this set may be packed.
  bool IsPackable(int set) const { return set != kUnknown && !is_conditional_[set]; }

 private:
  // Ops that may wait are numbers from 0 on, by node. Branches are negative: -1 - 2 * condition - branch.
  using Item = int64_t;
  using Items = std::vector<Item>;

  int Intern(Items items);
  int Union(int a, int b);
  int With(int set, Item item);
  // What a node's inputs wait for, all together.
  int OfInputs(const tensorflow::Node& node);
  int OfMerge(const tensorflow::Node& node);
  int OfExit(const tensorflow::Node& node);
  int OfEdge(const tensorflow::Edge& edge) const;
  Item Branch(const tensorflow::Edge& decider, int branch);

  // The set of each node, and of the second output of those that are Switches.
  std::vector<int> of_node_;
  std::vector<int> of_second_;

  std::vector<Items> sets_;
  std::vector<bool> is_conditional_;
  std::map<Items, int> numbers_;
  absl::flat_hash_map<std::pair<int, int>, int> unions_;
  // Conditions, by the output that decides them, and whether they decide a loop.
  absl::flat_hash_map<std::pair<int, int>, int> conditions_;
  std::vector<bool> is_of_loop_;
};

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_GRAPH_WAITS_H_
