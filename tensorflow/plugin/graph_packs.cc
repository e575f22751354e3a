#include "graph_packs.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/graph/node_builder.h"
#include "tensorflow/core/platform/random.h"

namespace grpcxx_tensorflow {
namespace {

using tensorflow::DataType;
using tensorflow::Edge;
using tensorflow::Node;
using tensorflow::NodeBuilder;

// Tasks keep kernels by the names of nodes, so that no name may come again: in this process or in another.
std::string NewName(const char* what) {
  static const uint64_t kProcess = tensorflow::random::New64();
  static std::atomic<uint64_t> number{0};
  return absl::StrCat("grpcxx/", what, "_", absl::Hex(kProcess), "_", number.fetch_add(1));
}

DataType TypeOf(const Member& member) { return tensorflow::BaseType(member.source->output_type(member.output)); }

// A variable that a pack can find by itself.
struct Name {
  std::string container;
  std::string name;
};

// The name of the variable behind a handle, if it tells all there is to know.
bool FindName(const Node& handle, Name* name) {
  if (handle.type_string() != "VarHandleOp") return false;
  for (const Edge* edge : handle.in_edges()) {
    if (edge->src()->IsOp()) return false;
  }
  return tensorflow::TryGetNodeAttr(handle.attrs(), "shared_name", &name->name) &&
         tensorflow::TryGetNodeAttr(handle.attrs(), "container", &name->container) && !name->name.empty() &&
         name->name != tensorflow::ResourceHandle::ANONYMOUS_NAME;
}

bool HasUser(const Node& node) {
  for (const Edge* edge : node.out_edges()) {
    if (edge->dst()->IsOp()) return true;
  }
  return false;
}

}  // namespace

Packs::Packs(tensorflow::Graph* graph, const tensorflow::FunctionLibraryDefinition* functions,
             const std::vector<Node*>& order)
    : graph_(graph), is_output_kept_(graph->num_node_ids(), false), keeps_(graph->num_node_ids(), false) {
  for (auto place = order.rbegin(); place != order.rend(); ++place) {
    const Node& node = **place;
    if (!node.IsOp()) continue;
    keeps_[node.id()] = MayKeep(node, functions);
    bool is_kept = false;
    for (const Edge* edge : node.out_edges()) {
      const Node& user = *edge->dst();
      if (edge->IsControlEdge() || user.assigned_device_name_index() != node.assigned_device_name_index()) continue;
      is_kept |= keeps_[user.id()] || (MayShareMemory(user) && is_output_kept_[user.id()]);
    }
    is_output_kept_[node.id()] = is_kept;
  }
}

absl::Status Packs::Add(const std::vector<Member>& members) {
  Node* pack = nullptr;
  std::vector<const Member*> packed;
  const bool reads = members[0].read != nullptr;
  absl::Status status;
  if (reads) {
    status = AddVariablesPack(members, &packed, &pack);
  } else {
    status = AddPack(members, &pack);
    for (const Member& member : members) packed.push_back(&member);
  }
  if (status.ok()) status = AddUnpack(packed, pack);
  if (!status.ok() || !reads) return status;
  for (const Member& member : members) ReplaceRead(member, pack);
  return absl::OkStatus();
}

void Packs::Finish() {
  for (Node* handle : handles_) {
    if (!HasUser(*handle)) graph_->RemoveNode(handle);
  }
  handles_.clear();
}

absl::Status Packs::AddPack(const std::vector<Member>& members, Node** pack) {
  std::vector<NodeBuilder::NodeOut> tensors;
  std::vector<DataType> types;
  for (const Member& member : members) {
    tensors.emplace_back(member.source, member.output);
    types.push_back(TypeOf(member));
  }
  absl::Status status = NodeBuilder(NewName("pack"), "GrpcxxPack", graph_->op_registry())
                            .Input(tensors)
                            .Attr("T", types)
                            .Finalize(graph_, pack);
  if (status.ok()) Place(*pack, *members[0].source);
  return status;
}

absl::Status Packs::AddVariablesPack(const std::vector<Member>& members, std::vector<const Member*>* packed,
                                     Node** pack) {
  std::vector<NodeBuilder::NodeOut> handles;
  std::vector<std::string> containers, names;
  std::vector<const Member*> named;
  for (const Member& member : members) {
    const Edge* handle = nullptr;
    absl::Status found = member.read->input_edge(0, &handle);
    if (!found.ok()) return found;
    Name name;
    if (FindName(*handle->src(), &name)) {
      named.push_back(&member);
      containers.push_back(name.container);
      names.push_back(name.name);
      handles_.insert(handle->src());
    } else {
      packed->push_back(&member);
      handles.emplace_back(handle->src(), handle->src_output());
    }
  }
  packed->insert(packed->end(), named.begin(), named.end());
  std::vector<DataType> types;
  for (const Member* member : *packed) types.push_back(TypeOf(*member));
  absl::Status status = NodeBuilder(NewName("pack_variables"), "GrpcxxPackVariables", graph_->op_registry())
                            .Input(handles)
                            .Attr("N", static_cast<int>(handles.size()))
                            .Attr("containers", containers)
                            .Attr("names", names)
                            .Attr("dtypes", types)
                            .Finalize(graph_, pack);
  if (status.ok()) Place(*pack, *members[0].source);
  return status;
}

absl::Status Packs::AddUnpack(const std::vector<const Member*>& packed, Node* pack) {
  std::vector<DataType> types;
  std::vector<bool> copies;
  for (const Member* member : packed) {
    types.push_back(TypeOf(*member));
    copies.push_back(IsKept(*member));
  }
  Node* unpack = nullptr;
  absl::Status status = NodeBuilder(NewName("unpack"), "GrpcxxUnpack", graph_->op_registry())
                            .Input(pack, 0)
                            .Attr("T", types)
                            .Attr("copies", copies)
                            .Finalize(graph_, &unpack);
  if (!status.ok()) return status;
  Place(unpack, *packed[0]->uses[0].first);
  for (int i = 0; i < packed.size(); ++i) {
    for (const auto& [user, input] : packed[i]->uses) {
      status = graph_->UpdateEdge(unpack, i, user, input);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

void Packs::ReplaceRead(const Member& member, Node* pack) {
  std::vector<Node*> nodes = {member.read};
  if (member.source != member.read) nodes.push_back(member.source);
  absl::flat_hash_set<Node*> before, behind;
  for (const Node* node : nodes) {
    for (const Edge* edge : node->in_edges()) {
      if (edge->IsControlEdge() && edge->src()->IsOp()) before.insert(edge->src());
    }
    for (const Edge* edge : node->out_edges()) {
      if (edge->IsControlEdge() && edge->dst()->IsOp()) behind.insert(edge->dst());
    }
  }
  for (Node* node : before) graph_->AddControlEdge(node, pack);
  for (Node* node : behind) graph_->AddControlEdge(pack, node);
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) graph_->RemoveNode(*node);
}

bool Packs::IsKept(const Member& member) const {
  for (const auto& [user, input] : member.uses) {
    if (keeps_[user->id()] || (MayShareMemory(*user) && is_output_kept_[user->id()])) return true;
  }
  return false;
}

void Packs::Place(Node* node, const Node& beside) const {
  node->set_requested_device(beside.assigned_device_name());
  node->set_assigned_device_name(beside.assigned_device_name());
}

}  // namespace grpcxx_tensorflow
