// The passes over TensorFlow's graphs: one notes the sizes of tensors while their shapes are known, the other joins
// small tensors that go from one task to another.

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "counters.h"
#include "graph_fusion.h"
#include "graph_members.h"
#include "graph_packs.h"
#include "graph_sizes.h"
#include "graph_waits.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/control_flow.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/public/session_options.h"

namespace grpcxx_tensorflow {
namespace {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::GraphOptimizationPassOptions;
using tensorflow::Node;

// Fewer tensors go alone: two more ops cost more than they save.
constexpr size_t kTensorsMin = 4;
// Data of a pack. Also what a step holds of a pack of which it uses but one tensor.
constexpr int64_t kPackBytesMax = 1 << 20;

std::atomic<bool> is_on{false};

// Tensors that may share a pack: they go the same way, at the same time.
struct Way {
  int source_device;
  int target_device;
  int level;
  int waits;
  // Values of variables are there at once, and do not wait for what is computed.
  bool reads;

  auto Key() const { return std::tie(source_device, target_device, level, waits, reads); }
  bool operator<(const Way& other) const { return Key() < other.Key(); }
};

bool SpansTasks(const Graph& graph) {
  int first = -1;
  for (const Node* node : graph.op_nodes()) {
    if (first < 0) first = node->assigned_device_name_index();
    if (node->assigned_device_name_index() != first) return true;
  }
  return false;
}

// Each node behind its inputs, but for the values that come round in loops.
std::vector<Node*> InOrder(const Graph& graph) {
  std::vector<Node*> order;
  tensorflow::GetReversePostOrder(graph, &order, tensorflow::NodeComparatorID(),
                                  [](const Edge& edge) { return !edge.src()->IsNextIteration(); });
  return order;
}

absl::Status FindLoops(const Graph& graph, std::vector<bool>* is_in_loop) {
  is_in_loop->assign(graph.num_node_ids(), false);
  bool has_loop = false;
  for (const Node* node : graph.op_nodes()) has_loop |= node->IsEnter();
  if (!has_loop) return absl::OkStatus();
  std::vector<tensorflow::ControlFlowInfo> info;
  absl::Status status = tensorflow::BuildControlFlowInfo(&graph, &info);
  if (!status.ok()) return status;
  for (const Node* node : graph.op_nodes()) {
    (*is_in_loop)[node->id()] = node->IsExit() || !info[node->id()].frame_name.empty();
  }
  return absl::OkStatus();
}

// The level of a node is the largest number of steps on a way to it, where a step is an edge to another device, or a
// control edge behind the reading of a variable that a pack may take over.
//
// Whoever is behind a pack has a higher level than the pack's members, however many packs there are; and no edge leads
// to a lower level. So no way leads from a pack back to its members.
std::vector<int> FindLevels(const std::vector<Node*>& order, int num_node_ids, const std::vector<Member>& members) {
  std::vector<bool> is_read(num_node_ids, false);
  for (const Member& member : members) {
    if (member.read != nullptr) is_read[member.read->id()] = is_read[member.source->id()] = true;
  }
  std::vector<int> levels(num_node_ids, 0);
  for (const Node* node : order) {
    int level = 0;
    for (const Edge* edge : node->in_edges()) {
      const Node& source = *edge->src();
      if (!source.IsOp() || !node->IsOp() || source.IsNextIteration()) continue;
      const bool is_step = source.assigned_device_name_index() != node->assigned_device_name_index() ||
                           (edge->IsControlEdge() && is_read[source.id()]);
      level = std::max(level, levels[source.id()] + (is_step ? 1 : 0));
    }
    levels[node->id()] = level;
  }
  return levels;
}

// Cuts a group into packs of bounded size. The rest may be too small for a pack.
std::vector<std::vector<Member>> Cut(std::vector<Member> group) {
  std::vector<std::vector<Member>> packs;
  int64_t bytes = kPackBytesMax;
  for (Member& member : group) {
    if (packs.empty() || bytes + member.bytes > kPackBytesMax) {
      packs.emplace_back();
      bytes = 0;
    }
    bytes += member.bytes;
    packs.back().push_back(std::move(member));
  }
  return packs;
}

// What was fused in one graph, in words for the log.
class Report {
 public:
  void Add(const std::string& source, const std::string& target, size_t tensors, bool reads) {
    Line& line = lines_[{source, target}];
    line.packs += 1;
    line.tensors += tensors;
    if (reads) line.variables += tensors;
    grpcxx_tensorflow::Add(Count().graph_packs);
    grpcxx_tensorflow::Add(Count().graph_packed_tensors, tensors);
    if (reads) grpcxx_tensorflow::Add(Count().graph_packed_variables, tensors);
  }

  void Tell() const {
    std::string text;
    for (const auto& [way, line] : lines_) {
      absl::StrAppend(&text, text.empty() ? "" : "; ", line.tensors, " tensors from ", way.first, " to ", way.second,
                      " in ", line.packs, line.packs == 1 ? " pack" : " packs", " (", line.variables,
                      " read from variables)");
    }
    if (!text.empty()) LOG(INFO) << "grpc++: fused a graph: " << text;
  }

 private:
  struct Line {
    size_t packs = 0, tensors = 0, variables = 0;
  };
  std::map<std::pair<std::string, std::string>, Line> lines_;
};

absl::Status Fuse(const GraphOptimizationPassOptions& options) {
  Graph* const graph = options.graph->get();
  const Devices devices(*graph, *options.device_set);
  const std::vector<Node*> order = InOrder(*graph);
  std::vector<bool> is_in_loop;
  // A graph whose loops TensorFlow cannot make out is left to the error that it will give.
  if (!FindLoops(*graph, &is_in_loop).ok()) return absl::OkStatus();
  const int num_node_ids = graph->num_node_ids();
  const Waits waits(order, num_node_ids, options.flib_def);
  Sizes sizes(*graph, options.flib_def);
  std::vector<Member> members = FindMembers(order, devices, waits, is_in_loop, &sizes);
  if (members.size() < kTensorsMin) return absl::OkStatus();
  const std::vector<int> levels = FindLevels(order, num_node_ids, members);

  std::map<Way, std::vector<Member>> groups;
  for (Member& member : members) {
    const Node& source = *member.source;
    const Way way = {source.assigned_device_name_index(), member.target_device, levels[source.id()],
                     waits.Of(source, member.output), member.read != nullptr};
    groups[way].push_back(std::move(member));
  }
  Packs packs(graph, options.flib_def, order);
  Report report;
  for (auto& [way, group] : groups) {
    for (const std::vector<Member>& pack : Cut(std::move(group))) {
      if (pack.size() < kTensorsMin) continue;
      const absl::Status status = packs.Add(pack);
      if (!status.ok()) return status;
      report.Add(devices.TaskOf(way.source_device), devices.TaskOf(way.target_device), pack.size(), way.reads);
    }
  }
  packs.Finish();
  tensorflow::FixupSourceAndSinkEdges(graph);
  report.Tell();
  return absl::OkStatus();
}

bool IsOurs(const GraphOptimizationPassOptions& options) {
  return IsGraphFusionOn() && options.graph != nullptr && *options.graph != nullptr && SpansTasks(**options.graph);
}

class NoteSizesPass : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const GraphOptimizationPassOptions& options) override {
    if (IsOurs(options)) NoteSizes(options.graph->get(), options.flib_def);
    return absl::OkStatus();
  }
};

class FusePass : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const GraphOptimizationPassOptions& options) override {
    if (!IsOurs(options) || options.device_set == nullptr) return absl::OkStatus();
    const tensorflow::SessionOptions* const session = options.session_options;
    // Packs would keep the bits that this setting wants to lose.
    if (session != nullptr && session->config.graph_options().enable_bfloat16_sendrecv()) return absl::OkStatus();
    return Fuse(options);
  }
};

}  // namespace

void RegisterGraphFusion() {
  // Behind TensorFlow's own passes of the same grouping.
  constexpr int kPhase = 1000;
  using Registry = tensorflow::OptimizationPassRegistry;
  REGISTER_OPTIMIZATION(Registry::POST_PLACEMENT, kPhase, NoteSizesPass);
  REGISTER_OPTIMIZATION(Registry::POST_REWRITE_FOR_EXEC, kPhase, FusePass);
}

void TurnGraphFusionOn() { is_on.store(true); }
bool IsGraphFusionOn() { return is_on.load(); }

}  // namespace grpcxx_tensorflow
