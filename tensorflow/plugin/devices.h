#ifndef GRPCXX_TENSORFLOW_DEVICES_H_
#define GRPCXX_TENSORFLOW_DEVICES_H_

#include <memory>

#include "absl/status/status.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/protobuf/tensorflow_server.pb.h"

namespace grpcxx_tensorflow {

bool HasOnlyCpus(const tensorflow::DeviceMgr& devices);

// Makes the devices of a server, as TensorFlow would. In a process with nothing but CPUs, large tensors that those
// compute have their memory from the pool, like those that are received.
absl::Status NewDevices(const tensorflow::ServerDef& server_def, std::unique_ptr<tensorflow::DeviceMgr>* devices);

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_DEVICES_H_
