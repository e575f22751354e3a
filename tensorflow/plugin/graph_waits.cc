#include "graph_waits.h"

#include <algorithm>
#include <iterator>

#include "graph_ops.h"

namespace grpcxx_tensorflow {
namespace {

using tensorflow::Edge;
using tensorflow::Node;

// A graph where more ops may wait for each other is left as it is, rather than looked at for minutes.
constexpr size_t kItemsMax = 256;
constexpr int kNothing = 1;

bool IsOfBranch(int64_t item) { return item < 0; }
int ConditionOf(int64_t item) { return static_cast<int>((-1 - item) / 2); }
// The other branch of the same condition.
int64_t Opposite(int64_t item) { return -1 - ((-1 - item) ^ 1); }

}  // namespace

Waits::Waits(const std::vector<Node*>& order, int num_node_ids,
             const tensorflow::FunctionLibraryDefinition* functions)
    : of_node_(num_node_ids, kUnknown), of_second_(num_node_ids, kUnknown) {
  // An impossible item makes the first set unequal to all others.
  sets_.push_back({INT64_MAX});
  is_conditional_.push_back(false);
  Intern({});
  for (const Node* node : order) {
    int set = kNothing;
    if (node->IsMerge()) {
      set = OfMerge(*node);
    } else if (node->IsExit()) {
      set = OfExit(*node);
    } else {
      set = OfInputs(*node);
    }
    if (node->IsOp() && MayWait(*node, functions)) set = With(set, node->id());
    of_node_[node->id()] = set;
    if (!node->IsSwitch()) continue;
    const Edge* decider = nullptr;
    if (node->num_outputs() == 2 && node->input_edge(1, &decider).ok()) {
      of_second_[node->id()] = With(set, Branch(*decider, 1));
      of_node_[node->id()] = With(set, Branch(*decider, 0));
    } else {
      of_node_[node->id()] = kUnknown;
    }
  }
}

int Waits::Of(const Node& node, int output) const {
  return node.IsSwitch() && output == 1 ? of_second_[node.id()] : of_node_[node.id()];
}

int Waits::Intern(Items items) {
  if (items.size() > kItemsMax) return kUnknown;
  const auto [found, is_new] = numbers_.emplace(std::move(items), static_cast<int>(sets_.size()));
  if (is_new) {
    sets_.push_back(found->first);
    // Branches are negative, so that they stand in front.
    is_conditional_.push_back(!found->first.empty() && IsOfBranch(found->first.front()));
  }
  return found->second;
}

int Waits::Union(int a, int b) {
  if (a == b || b == kNothing) return a;
  if (a == kNothing) return b;
  if (a == kUnknown || b == kUnknown) return kUnknown;
  const std::pair<int, int> key = std::minmax(a, b);
  const auto known = unions_.find(key);
  if (known != unions_.end()) return known->second;
  Items items;
  std::set_union(sets_[a].begin(), sets_[a].end(), sets_[b].begin(), sets_[b].end(), std::back_inserter(items));
  const int both = Intern(std::move(items));
  unions_[key] = both;
  return both;
}

int Waits::With(int set, Item item) {
  if (set == kUnknown) return kUnknown;
  Items items = sets_[set];
  const auto place = std::lower_bound(items.begin(), items.end(), item);
  if (place == items.end() || *place != item) items.insert(place, item);
  return Intern(std::move(items));
}

int Waits::OfEdge(const Edge& edge) const {
  // Who waits for a Switch itself counts as in a branch of it, which is more than it needs.
  return Of(*edge.src(), edge.IsControlEdge() ? 0 : edge.src_output());
}

int Waits::OfInputs(const Node& node) {
  int set = kNothing;
  for (const Edge* edge : node.in_edges()) set = Union(set, OfEdge(*edge));
  return set;
}

int Waits::OfMerge(const Node& node) {
  std::vector<int> inputs;
  int controls = kNothing;
  bool is_of_loop = false;
  for (const Edge* edge : node.in_edges()) {
    if (edge->src()->IsNextIteration()) {
      is_of_loop = true;
    } else if (edge->IsControlEdge()) {
      controls = Union(controls, OfEdge(*edge));
    } else {
      inputs.push_back(OfEdge(*edge));
    }
  }
  int set = kUnknown;
  if (is_of_loop && inputs.size() == 1) {
    set = inputs[0];
  } else if (inputs.size() == 2 && inputs[0] != kUnknown && inputs[1] != kUnknown) {
    // Two branches of one condition become one: whichever is taken, a value comes.
    const Items& a = sets_[inputs[0]];
    const Items& b = sets_[inputs[1]];
    Items only_a, only_b, common;
    std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(only_a));
    std::set_difference(b.begin(), b.end(), a.begin(), a.end(), std::back_inserter(only_b));
    std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(common));
    const bool closes = only_a.size() == 1 && only_b.size() == 1 && IsOfBranch(only_a[0]) &&
                        only_b[0] == Opposite(only_a[0]);
    // Which of the branches waits for what is not told by a set.
    if (closes) set = Intern(std::move(common));
  }
  return Union(set, controls);
}

int Waits::OfExit(const Node& node) {
  const int inside = OfInputs(node);
  if (inside == kUnknown) return kUnknown;
  Items items;
  for (const Item item : sets_[inside]) {
    if (!IsOfBranch(item) || !is_of_loop_[ConditionOf(item)]) items.push_back(item);
  }
  // What the loop itself waits for is not looked at: it is one op that may wait.
  return With(Intern(std::move(items)), node.id());
}

Waits::Item Waits::Branch(const Edge& decider, int branch) {
  const std::pair<int, int> key(decider.src()->id(), decider.src_output());
  const auto [found, is_new] = conditions_.emplace(key, static_cast<int>(is_of_loop_.size()));
  if (is_new) is_of_loop_.push_back(decider.src()->IsLoopCond());
  return -1 - 2 * static_cast<Item>(found->second) - branch;
}

}  // namespace grpcxx_tensorflow
