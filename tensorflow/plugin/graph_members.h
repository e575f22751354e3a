#ifndef GRPCXX_TENSORFLOW_GRAPH_MEMBERS_H_
#define GRPCXX_TENSORFLOW_GRAPH_MEMBERS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "graph_sizes.h"
#include "graph_waits.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/graph/graph.h"

namespace grpcxx_tensorflow {

// The devices of a graph, by the numbers that the graph gives them.
class Devices {
 public:
  Devices(const tensorflow::Graph& graph, const tensorflow::DeviceSet& devices);

  // Whether tensors may travel in packs from one to the other: both are CPUs of different tasks that know packs.
  bool MayPack(int source, int target) const;
  // "/job:ps/replica:0/task:1".
  const std::string& TaskOf(int device) const { return tasks_[device].name; }

 private:
  struct Task {
    std::string name;
    bool packs = false;
  };
  std::vector<Task> tasks_;
};

// A tensor that may travel in a pack.
struct Member {
  tensorflow::Node* source = nullptr;
  int output = 0;
  int target_device = 0;
  int64_t bytes = 0;
  // The inputs that it goes to, all on the target device.
  std::vector<std::pair<tensorflow::Node*, int>> uses;
  // The ReadVariableOp that it comes from, if the pack may read the variable instead: then nobody else uses the value.
  tensorflow::Node* read = nullptr;
};

// All members of a graph, in the order of `order`.
std::vector<Member> FindMembers(const std::vector<tensorflow::Node*>& order, const Devices& devices,
                                const Waits& waits, const std::vector<bool>& is_in_loop, Sizes* sizes);

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_GRAPH_MEMBERS_H_
