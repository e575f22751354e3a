#ifndef GRPCXX_TENSORFLOW_WORKER_CACHE_H_
#define GRPCXX_TENSORFLOW_WORKER_CACHE_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "remote_worker.h"
#include "tensorflow/core/distributed_runtime/worker_cache_wrapper.h"
#include "tensorflow/core/protobuf/cluster.pb.h"

namespace grpcxx_tensorflow {

// TensorFlow's cache of gRPC workers, whose remote workers know grpc++.
class WorkerCache : public tensorflow::WorkerCacheWrapper {
 public:
  // The worker of `local` itself stays as it is.
  WorkerCache(std::shared_ptr<const LocalTask> local, tensorflow::WorkerCacheInterface* grpc,
              const tensorflow::ClusterDef& cluster);
  ~WorkerCache() override;

  tensorflow::WorkerInterface* GetOrCreateWorker(const std::string& target) override;
  void ReleaseWorker(const std::string& target, tensorflow::WorkerInterface* worker) override;

 private:
  const std::shared_ptr<const LocalTask> local_;
  const std::shared_ptr<tensorflow::WorkerCacheInterface> grpc_;
  std::map<std::string, std::string> grpc_addresses_;

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<RemoteWorker>> workers_;
};

// "/job:ps/replica:0/task:1".
std::string TargetName(const std::string& job, int task);

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_WORKER_CACHE_H_
