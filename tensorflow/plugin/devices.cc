#include "devices.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "pool.h"
#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/common_runtime/threadpool_device.h"
#include "tensorflow/core/public/session_options.h"

namespace grpcxx_tensorflow {
namespace {

bool IsCpu(const tensorflow::Device& device) { return device.device_type() == "CPU"; }

// Another CPU of the same name, which takes memory from the pool.
std::unique_ptr<tensorflow::Device> WithPool(const tensorflow::SessionOptions& options,
                                             const tensorflow::Device& device) {
  const tensorflow::DeviceAttributes& attributes = device.attributes();
  return std::make_unique<tensorflow::ThreadPoolDevice>(options, device.name(),
                                                        tensorflow::Bytes(attributes.memory_limit()),
                                                        attributes.locality(), &Pool::Instance());
}

}  // namespace

bool HasOnlyCpus(const tensorflow::DeviceMgr& devices) {
  for (const tensorflow::Device* device : devices.ListDevices()) {
    if (!IsCpu(*device)) return false;
  }
  return true;
}

absl::Status NewDevices(const tensorflow::ServerDef& server_def, std::unique_ptr<tensorflow::DeviceMgr>* devices) {
  tensorflow::SessionOptions options;
  options.config = server_def.default_session_config();
  const std::string prefix =
      absl::StrCat("/job:", server_def.job_name(), "/replica:0/task:", server_def.task_index());
  std::vector<std::unique_ptr<tensorflow::Device>> made;
  const absl::Status status = tensorflow::DeviceFactory::AddDevices(options, prefix, &made);
  if (!status.ok()) return status;
  bool takes_pool =
      Pool::Instance().retained_bytes_max() > 0 && !options.config.experimental().use_numa_affinity();
  for (const auto& device : made) takes_pool &= IsCpu(*device);
  if (takes_pool) {
    for (auto& device : made) device = WithPool(options, *device);
  }
  *devices = std::make_unique<tensorflow::DynamicDeviceMgr>(std::move(made));
  return absl::OkStatus();
}

}  // namespace grpcxx_tensorflow
