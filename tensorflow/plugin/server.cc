#include "server.h"

#include <utility>

#include "devices.h"
#include "engine.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/rpc/rpc_rendezvous_mgr.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/logging.h"
#include "worker.h"
#include "worker_cache.h"

namespace grpcxx_tensorflow {
namespace {

// Releases of TensorFlow differ in whether the options hold values or pointers.
template <typename T>
const T& Value(const T& value) {
  return value;
}
template <typename T>
const T& Value(const T* value) {
  return *value;
}

}  // namespace

Server::Server(const tensorflow::ServerDef& server_def, tensorflow::Env* env)
    : tensorflow::GrpcServer(server_def, env) {}

Server::~Server() {
  // The worker that the engine calls goes with the base class.
  if (engine_ != nullptr) engine_->Shutdown();
}

absl::Status Server::Create(const tensorflow::ServerDef& server_def, tensorflow::DeviceMgr* local_device_mgr,
                            std::unique_ptr<tensorflow::ServerInterface>* out_server) {
  std::unique_ptr<Server> server(new Server(server_def, tensorflow::Env::Default()));
  const absl::Status status = server->InitWithEngine(local_device_mgr);
  if (!status.ok()) {
    LOG(ERROR) << status;
    return status;
  }
  *out_server = std::move(server);
  return absl::OkStatus();
}

absl::Status Server::InitWithEngine(tensorflow::DeviceMgr* local_device_mgr) {
  // The worker announces the star port, so the engine listens first.
  absl::StatusOr<std::shared_ptr<Engine>> engine = Engine::Start(server_def());
  if (!engine.ok()) return engine.status();
  engine_ = *std::move(engine);
  if (local_device_mgr == nullptr) {
    // Before devices are made, whose names a wrong task would spoil.
    std::string host_name;
    int port = 0;
    absl::Status status = GetHostAndPort(server_def(), &host_name, &port);
    if (status.ok()) status = NewDevices(server_def(), &devices_);
    if (!status.ok()) return status;
    local_device_mgr = devices_.get();
  }
  Worker* worker = nullptr;
  tensorflow::GrpcServerOptions options;
  options.local_device_mgr = local_device_mgr;
  options.rendezvous_mgr_func = [](const tensorflow::WorkerEnv* env) -> tensorflow::RendezvousMgrInterface* {
    return new tensorflow::RpcRendezvousMgr(env);
  };
  options.worker_func = [this, &worker](tensorflow::WorkerEnv* env, const tensorflow::ConfigProto& config) {
    auto made = std::make_unique<Worker>(env, config, engine_);
    worker = made.get();
    return made;
  };
  absl::Status status = Init(options);
  if (status.ok()) engine_->SetService(worker);
  return status;
}

absl::Status Server::WorkerCacheFactory(const tensorflow::WorkerCacheFactoryOptions& options,
                                        tensorflow::WorkerCacheInterface** worker_cache) {
  tensorflow::WorkerCacheInterface* grpc = nullptr;
  const absl::Status status = tensorflow::GrpcServer::WorkerCacheFactory(options, &grpc);
  if (!status.ok()) return status;
  tensorflow::WorkerEnv* env = worker_env();
  auto local = std::make_shared<LocalTask>();
  local->engine = engine_;
  local->run = [env](std::function<void()> code) {
    if (env->compute_pool != nullptr) {
      env->compute_pool->Schedule(std::move(code));
    } else {
      env->env->SchedClosure(std::move(code));
    }
  };
  local->has_plain_memory = HasOnlyCpus(*env->device_mgr);
  local->target = TargetName(Value(options.job_name), options.task_index);
  *worker_cache = new WorkerCache(std::move(local), grpc, Value(options.cluster_def));
  return absl::OkStatus();
}

}  // namespace grpcxx_tensorflow
