#include "graph_members.h"

#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "engine.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/device_set.h"
#include "tensorflow/core/framework/device_attributes.pb.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace grpcxx_tensorflow {
namespace {

using tensorflow::DeviceNameUtils;
using tensorflow::Edge;
using tensorflow::Node;

// Larger tensors cost more to copy twice than to send alone.
constexpr int64_t kTensorBytesMax = 32 << 10;

std::string TaskName(const DeviceNameUtils::ParsedName& name) {
  return absl::StrCat("/job:", name.job, "/replica:", name.replica, "/task:", name.task);
}

bool IsWhole(const DeviceNameUtils::ParsedName& name) {
  return name.has_job && name.has_replica && name.has_task && name.has_type && name.has_id;
}

bool IsPackable(tensorflow::DataType type) {
  return tensorflow::DataTypeCanUseMemcpy(tensorflow::BaseType(type)) &&
         tensorflow::DataTypeSize(tensorflow::BaseType(type)) > 0;
}

// The only node that uses the output of `node`, if there is just one use.
Node* OnlyUser(const Node& node) {
  Node* user = nullptr;
  for (const Edge* edge : node.out_edges()) {
    if (edge->IsControlEdge()) continue;
    if (user != nullptr) return nullptr;
    user = edge->dst();
  }
  return user;
}

// Whether an op other than its inputs' must run first.
bool HasControlInput(const Node& node) {
  for (const Edge* edge : node.in_edges()) {
    if (edge->IsControlEdge() && edge->src()->IsOp()) return true;
  }
  return false;
}

// The ReadVariableOp whose value the output of `source` is, if both may go once a pack reads the variable.
Node* ReadBehind(Node* source) {
  Node* read = source;
  if (source->IsIdentity()) {
    const Edge* input = nullptr;
    if (!source->input_edge(0, &input).ok()) return nullptr;
    read = input->src();
    // What this node waits for must not put off the reading.
    if (OnlyUser(*read) != source || HasControlInput(*source)) return nullptr;
  }
  if (read->type_string() != "ReadVariableOp") return nullptr;
  const Edge* handle = nullptr;
  if (!read->input_edge(0, &handle).ok()) return nullptr;
  const int device = source->assigned_device_name_index();
  const bool is_here = read->assigned_device_name_index() == device &&
                       handle->src()->assigned_device_name_index() == device;
  return is_here ? read : nullptr;
}

}  // namespace

Devices::Devices(const tensorflow::Graph& graph, const tensorflow::DeviceSet& devices) {
  // A task says on one of its devices that it knows packs.
  std::map<std::string, bool> packs;
  for (const tensorflow::Device* device : devices.devices()) {
    Announcement announcement;
    const bool announces = Announcement::Find(device->attributes().physical_device_desc(), &announcement) &&
                           (announcement.features & Announcement::kPacks) != 0;
    if (announces || device->IsLocal()) packs[TaskName(device->parsed_name())] = true;
  }
  std::map<int, std::string> names;
  for (const Node* node : graph.op_nodes()) {
    names.emplace(node->assigned_device_name_index(), node->assigned_device_name());
  }
  if (!names.empty()) tasks_.resize(names.rbegin()->first + 1);
  for (const auto& [index, name] : names) {
    DeviceNameUtils::ParsedName parsed;
    if (!DeviceNameUtils::ParseFullName(name, &parsed) || !IsWhole(parsed)) continue;
    tasks_[index].name = TaskName(parsed);
    tasks_[index].packs = parsed.type == "CPU" && packs.count(tasks_[index].name) > 0;
  }
}

bool Devices::MayPack(int source, int target) const {
  return source != target && tasks_[source].packs && tasks_[target].packs &&
         tasks_[source].name != tasks_[target].name;
}

std::vector<Member> FindMembers(const std::vector<Node*>& order, const Devices& devices, const Waits& waits,
                                const std::vector<bool>& is_in_loop, Sizes* sizes) {
  std::vector<Member> members;
  for (Node* node : order) {
    if (!node->IsOp() || is_in_loop[node->id()]) continue;
    const int device = node->assigned_device_name_index();
    std::map<std::pair<int, int>, Member> found;
    bool has_other_uses = false;
    for (const Edge* edge : node->out_edges()) {
      if (edge->IsControlEdge()) continue;
      const int target = edge->dst()->assigned_device_name_index();
      const int output = edge->src_output();
      if (!edge->dst()->IsOp() || !devices.MayPack(device, target) || !IsPackable(node->output_type(output))) {
        has_other_uses = true;
        continue;
      }
      found[{output, target}].uses.emplace_back(edge->dst(), edge->dst_input());
    }
    Node* const read = !has_other_uses && found.size() == 1 ? ReadBehind(node) : nullptr;
    for (auto& [place, member] : found) {
      member.source = node;
      std::tie(member.output, member.target_device) = place;
      member.read = read;
      if (!waits.IsPackable(waits.Of(*node, member.output))) continue;
      member.bytes = sizes->Of(*node, member.output);
      if (member.bytes >= 0 && member.bytes <= kTensorBytesMax) members.push_back(std::move(member));
    }
  }
  return members;
}

}  // namespace grpcxx_tensorflow
