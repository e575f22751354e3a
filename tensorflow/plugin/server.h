#ifndef GRPCXX_TENSORFLOW_SERVER_H_
#define GRPCXX_TENSORFLOW_SERVER_H_

#include <memory>
#include <string>

#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_server_lib.h"

namespace grpcxx_tensorflow {

class Engine;

// What follows `protocol=` in a training script.
inline constexpr char kProtocol[] = "grpc++";

// What must outlive the server's base class.
struct OwnDevices {
  std::unique_ptr<tensorflow::DeviceMgr> devices_;
};

// TensorFlow's gRPC server, whose tensors travel through an engine.
//
// The master service, the eager service and everything else stay where they are: the target is grpc://.
class Server : private OwnDevices, public tensorflow::GrpcServer {
 public:
  static absl::Status Create(const tensorflow::ServerDef& server_def,
                             tensorflow::DeviceMgr* local_device_mgr,
                             std::unique_ptr<tensorflow::ServerInterface>* out_server);

  ~Server() override;

 protected:
  absl::Status WorkerCacheFactory(const tensorflow::WorkerCacheFactoryOptions& options,
                                  tensorflow::WorkerCacheInterface** worker_cache) override;

 private:
  Server(const tensorflow::ServerDef& server_def, tensorflow::Env* env);

  absl::Status InitWithEngine(tensorflow::DeviceMgr* local_device_mgr);

  std::shared_ptr<Engine> engine_;
};

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_SERVER_H_
