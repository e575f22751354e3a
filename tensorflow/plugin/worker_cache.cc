#include "worker_cache.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace grpcxx_tensorflow {

WorkerCache::WorkerCache(std::shared_ptr<const LocalTask> local, tensorflow::WorkerCacheInterface* grpc,
                         const tensorflow::ClusterDef& cluster)
    : tensorflow::WorkerCacheWrapper(grpc), local_(std::move(local)), grpc_(grpc) {
  for (const auto& job : cluster.job()) {
    for (const auto& [task, address] : job.tasks()) grpc_addresses_[TargetName(job.name(), task)] = address;
  }
}

WorkerCache::~WorkerCache() = default;

tensorflow::WorkerInterface* WorkerCache::GetOrCreateWorker(const std::string& target) {
  if (target == local_->target) return grpc_->GetOrCreateWorker(target);
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = workers_.find(target);
  if (found != workers_.end()) return found->second.get();
  tensorflow::WorkerInterface* grpc = grpc_->GetOrCreateWorker(target);
  if (grpc == nullptr) return nullptr;
  auto worker = std::make_shared<RemoteWorker>(local_, grpc_, grpc, target, grpc_addresses_[target]);
  worker->Open();
  workers_[target] = worker;
  return worker.get();
}

void WorkerCache::ReleaseWorker(const std::string& target, tensorflow::WorkerInterface* worker) {
  // Remote workers live as long as the cache: looking for the star port once for each would cost more.
  if (target == local_->target) grpc_->ReleaseWorker(target, worker);
}

std::string TargetName(const std::string& job, int task) {
  return absl::StrCat("/job:", job, "/replica:0/task:", task);
}

}  // namespace grpcxx_tensorflow
