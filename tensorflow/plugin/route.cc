#include "route.h"

#include <algorithm>

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
constexpr std::chrono::milliseconds kUnreachableForMin(1000);
constexpr std::chrono::milliseconds kUnreachableForMax(30000);
constexpr std::chrono::seconds kSilentFor(1);

uint64_t Incarnation(const tensorflow::GetStatusResponse& response) {
  return response.device_attributes_size() == 0 ? 0 : response.device_attributes(0).incarnation();
}

// What the callers of a task are told that was asked in vain: to wait for it, unless it is there and refuses them.
absl::Status InVain(const absl::Status& end, const std::string& text) {
  const bool is_refused = absl::IsUnauthenticated(end) || absl::IsPermissionDenied(end);
  return absl::Status(is_refused ? end.code() : absl::StatusCode::kUnavailable, absl::StrCat(text, end.message()));
}

bool FindAnnouncement(const tensorflow::GetStatusResponse& response, Announcement* announcement) {
  for (const auto& device : response.device_attributes()) {
    if (Announcement::Find(device.physical_device_desc(), announcement)) return true;
  }
  return false;
}

}  // namespace

void Peer::LearnMedium(const std::shared_ptr<Peer>& peer) {
  const auto told = [](void* user, const grpcxx_status* status, const grpcxx_peer_state* state) {
    const std::unique_ptr<std::shared_ptr<Peer>> owner(static_cast<std::shared_ptr<Peer>*>(user));
    if (status == nullptr) (*owner)->medium_.store(state->medium, std::memory_order_relaxed);
  };
  grpcxx_peer_inspect(peer->handle, told, new std::shared_ptr<Peer>(peer));
}

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
      grpc_address_(std::move(grpc_address)),
      unreachable_for_(kUnreachableForMin) {}

std::shared_ptr<Peer> Route::Current(bool* is_known, NoStar* no_star) {
  std::unique_lock<std::mutex> lock(mutex_);
  const bool asks = state_ == State::kGrpc && !is_asking_ && Clock::now() >= ask_again_at_;
  // Calls go on over gRPC until the answer is there, or wait for it if they must not.
  if (asks && is_forbidden_) state_ = State::kUnknown;
  *is_known = state_ != State::kUnknown;
  if (state_ == State::kStar) return peer_;
  *no_star = no_star_;
  if (asks && !is_forbidden_) Ask(std::move(lock));
  return nullptr;
}

void Route::WhenKnown(Use use) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (state_ != State::kUnknown) {
    const std::shared_ptr<Peer> peer = peer_;
    const NoStar no_star = no_star_;
    lock.unlock();
    return use(peer, no_star);
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

void Route::RefreshPlain() {
  const absl::Status plain = engine_->CheckPlainCall(grpc_address_);
  std::lock_guard<std::mutex> lock(plain_mutex_);
  plain_ = plain;
}

absl::Status Route::CheckPlain() {
  std::lock_guard<std::mutex> lock(plain_mutex_);
  return plain_;
}

absl::Status Route::MayFall(const char* method, const NoStar& no_star) {
  const absl::Status plain = CheckPlain();
  if (plain.ok()) return plain;
  Add(Count().refused_plain);
  return absl::Status(no_star.why.code(), absl::StrCat("grpc++: ", method, ": ", Refusal(no_star, plain)));
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
    return UseGrpc({Fallback::kUnreachable, absl::CancelledError("the session has ended")}, kSilentFor);
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
  // A name may have got another address.
  RefreshPlain();
  if (!status.ok()) {
    const absl::Status why = InVain(status, "it does not answer: ");
    // Without gRPC's words, which differ each time: the calls themselves tell them, by their failures.
    Tell({Fallback::kNoAnswer, absl::Status(why.code(), "it does not answer when it is asked for its star port")});
    return UseGrpc({Fallback::kNoAnswer, why}, kSilentFor);
  }
  Announcement announcement;
  if (!FindAnnouncement(question->response, &announcement)) {
    const NoStar no_plugin = {Fallback::kNoPlugin,
                              absl::FailedPreconditionError("it was not started with protocol=\"grpc++\"")};
    Tell(no_plugin);
    return UseGrpc(no_plugin, kNoPluginFor);
  }
  Probe(std::move(question), announcement);
}

void Route::Probe(std::shared_ptr<Question> question, const Announcement& announcement) {
  const absl::StatusOr<std::string> address = engine_->StarAddress(grpc_address_, announcement.port);
  if (!address.ok()) return Unreachable(address.status());
  tensorflow::DeviceNameUtils::ParsedName task;
  if (tensorflow::DeviceNameUtils::ParseFullName(target_, &task) && task.has_job && task.has_task) {
    const absl::Status expected = TakeFromEngine(grpcxx_engine_expect_task(
        engine_->handle(), address->data(), address->size(), task.job.data(), task.job.size(), task.task));
    if (!expected.ok()) return Unreachable(expected);
  }
  grpcxx_peer* handle = nullptr;
  const absl::Status made =
      TakeFromEngine(grpcxx_peer_new(engine_->handle(), address->data(), address->size(), &handle));
  if (!made.ok()) return Unreachable(made);
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
  absl::Status why;
  if (status != nullptr) {
    why = InVain(FromEngine(status), absl::StrCat("its star port ", question->address, " does not answer: "));
  } else {
    tensorflow::GetStatusResponse response;
    const bool parsed = response.ParseFromArray(data, static_cast<int>(size));
    if (!parsed || Incarnation(response) != Incarnation(question->response)) {
      why = absl::UnavailableError(absl::StrCat("another task answers at its star port ", question->address));
    }
  }
  // Waiting calls go on from here, and may begin others: not on a thread of the engine.
  question->worker->Run([question, route, why] {
    if (why.ok()) {
      route->UseStar(question->peer, Incarnation(question->response), question->address);
    } else {
      route->Unreachable(why);
    }
  });
}

void Route::UseStar(std::shared_ptr<Peer> peer, uint64_t incarnation, const std::string& address) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (state_ != State::kStar) Add(Count().peers_over_star);
  state_ = State::kStar;
  peer_ = std::move(peer);
  incarnation_ = incarnation;
  unreachable_for_ = kUnreachableForMin;
  if (last_told_ != address) {
    LOG(INFO) << "grpc++: tensors of " << target_ << " come from its star port " << address;
    last_told_ = address;
  }
  Settle(std::move(lock));
}

void Route::Unreachable(absl::Status why) {
  std::chrono::milliseconds again;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    again = unreachable_for_;
    // A port that was closed at the start of its task opens soon, or not for long.
    unreachable_for_ = std::min(2 * unreachable_for_, kUnreachableForMax);
  }
  const NoStar unreachable = {Fallback::kUnreachable, std::move(why)};
  Tell(unreachable);
  UseGrpc(unreachable, again);
}

void Route::UseGrpc(NoStar no_star, Clock::duration ask_again_after) {
  const bool is_forbidden = !CheckPlain().ok();
  std::unique_lock<std::mutex> lock(mutex_);
  if (state_ == State::kStar) Subtract(Count().peers_over_star);
  state_ = State::kGrpc;
  peer_ = nullptr;
  no_star_ = std::move(no_star);
  is_forbidden_ = is_forbidden;
  ask_again_at_ = Clock::now() + ask_again_after;
  Settle(std::move(lock));
}

std::string Route::Refusal(const NoStar& no_star, const absl::Status& plain) const {
  return absl::StrCat(target_, " is not called over star, because ", no_star.why.message(),
                      "; it is not called over gRPC, which has no TLS: ", plain.message());
}

void Route::Tell(const NoStar& no_star) {
  const absl::Status plain = CheckPlain();
  const std::string text =
      plain.ok() ? absl::StrCat("tensors of ", target_, " come over gRPC, because ", no_star.why.message())
                 : Refusal(no_star, plain);
  std::lock_guard<std::mutex> lock(mutex_);
  if (last_told_ == text) return;
  LOG(WARNING) << "grpc++: " << text;
  last_told_ = text;
}

void Route::Settle(std::unique_lock<std::mutex> lock) {
  is_asking_ = false;
  std::vector<Use> waiting;
  waiting.swap(waiting_);
  const std::shared_ptr<Peer> peer = peer_;
  const NoStar no_star = no_star_;
  lock.unlock();
  for (Use& use : waiting) use(peer, no_star);
}

}  // namespace grpcxx_tensorflow
