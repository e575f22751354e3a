#include "route.h"

#include "absl/strings/str_cat.h"
#include "remote_worker.h"
#include "status.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace grpcxx_tensorflow {
namespace {

constexpr int64_t kAskTimeoutMs = 10000;
constexpr uint64_t kProbeTimeoutMs = 5000;
// A task that was started without the plugin may be restarted with it, a port may be opened.
constexpr std::chrono::seconds kNoPluginFor(60);
constexpr std::chrono::seconds kUnreachableFor(30);
constexpr std::chrono::seconds kSilentFor(1);

uint64_t Incarnation(const tensorflow::GetStatusResponse& response) {
  return response.device_attributes_size() == 0 ? 0 : response.device_attributes(0).incarnation();
}

bool FindAnnouncement(const tensorflow::GetStatusResponse& response, Announcement* announcement) {
  for (const auto& device : response.device_attributes()) {
    if (Announcement::Find(device.physical_device_desc(), announcement)) return true;
  }
  return false;
}

}  // namespace

// What is asked of a task, and by whom.
struct Route::Question {
  std::shared_ptr<Route> route;
  // Keeps the gRPC worker alive that carries the question.
  std::shared_ptr<RemoteWorker> worker;
  tensorflow::CallOptions options;
  tensorflow::GetStatusRequest request;
  tensorflow::GetStatusResponse response;
  std::shared_ptr<Peer> peer;
  std::string address;
};

Route::Route(std::shared_ptr<Engine> engine, std::weak_ptr<RemoteWorker> worker, std::string target,
             std::string grpc_address)
    : engine_(std::move(engine)),
      worker_(std::move(worker)),
      target_(std::move(target)),
      grpc_address_(std::move(grpc_address)) {}

std::shared_ptr<Peer> Route::Current(bool* is_known, Fallback* reason) {
  std::unique_lock<std::mutex> lock(mutex_);
  *is_known = state_ != State::kUnknown;
  if (state_ == State::kStar) return peer_;
  *reason = reason_;
  // Calls go on over gRPC until the answer is there.
  if (state_ == State::kGrpc && !is_asking_ && Clock::now() >= ask_again_at_) Ask(std::move(lock));
  return nullptr;
}

void Route::WhenKnown(Use use) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (state_ != State::kUnknown) {
    const std::shared_ptr<Peer> peer = peer_;
    const Fallback reason = reason_;
    lock.unlock();
    return use(peer, reason);
  }
  waiting_.push_back(std::move(use));
  if (!is_asking_) Ask(std::move(lock));
}

void Route::Lost(const std::shared_ptr<Peer>& peer) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (state_ != State::kStar || peer_ != peer) return;
  state_ = State::kUnknown;
  peer_ = nullptr;
  Subtract(Count().peers_over_star);
}

void Route::Saw(const tensorflow::GetStatusResponse& response) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (state_ == State::kUnknown || Incarnation(response) == incarnation_) return;
  if (state_ == State::kStar) Subtract(Count().peers_over_star);
  state_ = State::kUnknown;
  peer_ = nullptr;
}

void Route::Ask(std::unique_lock<std::mutex> lock) {
  is_asking_ = true;
  lock.unlock();
  auto question = std::make_shared<Question>();
  question->route = shared_from_this();
  question->worker = worker_.lock();
  if (question->worker == nullptr) {
    return UseGrpc(Fallback::kUnreachable, "", kSilentFor);
  }
  question->options.SetTimeout(kAskTimeoutMs);
  question->worker->grpc()->GetStatusAsync(
      &question->options, &question->request, &question->response, /*fail_fast=*/true,
      [question](const absl::Status& status) { question->route->Answered(status, question); });
}

void Route::Answered(const absl::Status& status, std::shared_ptr<Question> question) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    incarnation_ = Incarnation(question->response);
  }
  // The call itself will tell what is wrong with the task.
  if (!status.ok()) return UseGrpc(Fallback::kUnreachable, "", kSilentFor);
  Announcement announcement;
  if (!FindAnnouncement(question->response, &announcement)) {
    return UseGrpc(Fallback::kNoPlugin, "it was not started with protocol=\"grpc++\"", kNoPluginFor);
  }
  Probe(std::move(question), announcement);
}

void Route::Probe(std::shared_ptr<Question> question, const Announcement& announcement) {
  const absl::StatusOr<std::string> address = engine_->StarAddress(grpc_address_, announcement.port);
  if (!address.ok()) {
    return UseGrpc(Fallback::kUnreachable, std::string(address.status().message()), kUnreachableFor);
  }
  tensorflow::DeviceNameUtils::ParsedName task;
  if (tensorflow::DeviceNameUtils::ParseFullName(target_, &task) && task.has_job && task.has_task) {
    const absl::Status expected = TakeFromEngine(grpcxx_engine_expect_task(
        engine_->handle(), address->data(), address->size(), task.job.data(), task.job.size(), task.task));
    if (!expected.ok()) return UseGrpc(Fallback::kUnreachable, std::string(expected.message()), kUnreachableFor);
  }
  grpcxx_peer* handle = nullptr;
  const absl::Status made =
      TakeFromEngine(grpcxx_peer_new(engine_->handle(), address->data(), address->size(), &handle));
  if (!made.ok()) return UseGrpc(Fallback::kUnreachable, std::string(made.message()), kUnreachableFor);
  question->peer = std::make_shared<Peer>(handle, announcement.features);
  question->address = *address;
  grpcxx_call_options options = {};
  options.struct_size = sizeof(options);
  options.timeout_ms = kProbeTimeoutMs;
  auto* user = new std::shared_ptr<Question>(std::move(question));
  grpcxx_message_call(handle, nullptr, GRPCXX_GET_STATUS, nullptr, 0, &options, &Route::Probed, user);
}

void Route::Probed(void* user, const grpcxx_status* status, const void* data, size_t size) {
  std::unique_ptr<std::shared_ptr<Question>> owner(static_cast<std::shared_ptr<Question>*>(user));
  const std::shared_ptr<Question> question = *owner;
  const std::shared_ptr<Route> route = question->route;
  std::string why;
  if (status != nullptr) {
    why = absl::StrCat("its star port ", question->address, " does not answer: ",
                       FromEngine(status).message());
  } else {
    tensorflow::GetStatusResponse response;
    const bool parsed = response.ParseFromArray(data, static_cast<int>(size));
    if (!parsed || Incarnation(response) != Incarnation(question->response)) {
      why = absl::StrCat("another task answers at its star port ", question->address);
    }
  }
  // Waiting calls go on from here, and may begin others: not on a thread of the engine.
  question->worker->Run([question, route, why] {
    if (why.empty()) {
      route->UseStar(question->peer, Incarnation(question->response), question->address);
    } else {
      route->UseGrpc(Fallback::kUnreachable, why, kUnreachableFor);
    }
  });
}

void Route::UseStar(std::shared_ptr<Peer> peer, uint64_t incarnation, const std::string& address) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (state_ != State::kStar) Add(Count().peers_over_star);
  state_ = State::kStar;
  peer_ = std::move(peer);
  incarnation_ = incarnation;
  if (last_told_ != address) {
    LOG(INFO) << "grpc++: tensors of " << target_ << " come from its star port " << address;
    last_told_ = address;
  }
  Settle(std::move(lock));
}

void Route::UseGrpc(Fallback reason, const std::string& why, Clock::duration ask_again_after) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (state_ == State::kStar) Subtract(Count().peers_over_star);
  state_ = State::kGrpc;
  peer_ = nullptr;
  reason_ = reason;
  ask_again_at_ = Clock::now() + ask_again_after;
  if (!why.empty() && last_told_ != why) {
    LOG(WARNING) << "grpc++: tensors of " << target_ << " come over gRPC, because " << why;
    last_told_ = why;
  }
  Settle(std::move(lock));
}

void Route::Settle(std::unique_lock<std::mutex> lock) {
  is_asking_ = false;
  std::vector<Use> waiting;
  waiting.swap(waiting_);
  const std::shared_ptr<Peer> peer = peer_;
  const Fallback reason = reason_;
  lock.unlock();
  for (Use& use : waiting) use(peer, reason);
}

}  // namespace grpcxx_tensorflow
