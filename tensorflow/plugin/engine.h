#ifndef GRPCXX_TENSORFLOW_ENGINE_H_
#define GRPCXX_TENSORFLOW_ENGINE_H_

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "grpcxx.h"
#include "tensorflow/core/protobuf/tensorflow_server.pb.h"

namespace grpcxx_tensorflow {

// Answers the requests that peers send to the engine's star port.
class Service {
 public:
  virtual ~Service() = default;
  // On a thread of the engine: must not block. Returns whether it took the responder.
  virtual bool Serve(grpcxx_request* request, grpcxx_responder* responder) = 0;
};

// What a task says about itself in the description of its first device, so that peers find its star port:
// one word such as "grpcxx=1:40001:3", which is version, port and features.
struct Announcement {
  static constexpr uint32_t kFusePartly = 1;  // answers a fused receive before all of its tensors are there
  static constexpr uint32_t kRecvBuf = 2;     // serves the buffers of collectives
  static constexpr uint32_t kSteps = 4;       // runs and cleans up graphs over star
  static constexpr uint32_t kPacks = 8;       // has the ops that graph fusion puts into graphs

  uint16_t port = 0;
  uint32_t features = 0;

  // The word.
  std::string Word() const;
  // Finds the word in a description. False if there is none, or one of another version.
  static bool Find(absl::string_view description, Announcement* announcement);
};

// The engine of one server, and what the server knows about star addresses.
class Engine {
 public:
  // Starts the engine of the task in `server_def` and listens: on the star port that .endpoint_map gives to the task,
  // or on a free port where there is no map.
  static absl::StatusOr<std::shared_ptr<Engine>> Start(const tensorflow::ServerDef& server_def);

  ~Engine();

  grpcxx_engine* handle() const { return engine_; }
  // What this task tells others.
  const Announcement& announcement() const { return announcement_; }
  // "/job:ps/replica:0/task:0".
  const char* task() const { return grpcxx_engine_task(engine_); }
  // Whether receives may share a request.
  bool fuses() const { return fuses_; }
  // Requests go to `service` from now on; none until then, and none after nullptr.
  void SetService(Service* service) { service_.store(service, std::memory_order_release); }
  // The star address of the task whose gRPC address is `grpc_address` and which announced `port`.
  absl::StatusOr<std::string> StarAddress(const std::string& grpc_address, uint16_t port) const;
  // Whether the task at this gRPC address may be called over gRPC, which has no TLS. Looks a name up.
  absl::Status CheckPlainCall(const std::string& grpc_address) const;
  // Whether what the device of a task asks for may be sent there over gRPC. Looks a name up.
  absl::Status CheckPlainAnswer(const std::string& device) const;
  // Ends all calls and stops the threads. Blocks.
  void Shutdown();

 private:
  Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  absl::Status ReadMap();
  absl::Status Configure(const tensorflow::ServerDef& server_def, size_t num_tasks, const std::string& listen,
                         grpcxx_options* options);
  static int32_t Serve(void* user, grpcxx_request* request, grpcxx_responder* responder);

  grpcxx_engine* engine_ = nullptr;
  grpcxx_endpoint_map* map_ = nullptr;
  // By job and index.
  std::map<std::pair<std::string, int>, std::string> grpc_addresses_;
  std::atomic<Service*> service_{nullptr};
  Announcement announcement_;
  bool fuses_ = true;
};

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_ENGINE_H_
