#include "receive.h"

#include <chrono>
#include <utility>

#include "counters.h"
#include "status.h"
#include "timer.h"

namespace grpcxx_tensorflow {
namespace {

// How often a call that never left tries to find a connection before it takes gRPC.
constexpr int kAttemptsMax = 3;
// How long a call waits that came faster than the engine takes them.
constexpr std::chrono::milliseconds kAgainAfter(1);

grpcxx_status* ToEngine(const absl::Status& status) {
  if (status.ok()) return nullptr;
  return grpcxx_status_new(static_cast<int32_t>(status.code()), status.message().data(), status.message().size());
}

}  // namespace

Operation::Operation(std::shared_ptr<RemoteWorker> worker, tensorflow::CallOptions* options,
                     tensorflow::StatusCallback done)
    : worker_(std::move(worker)), options_(options), done_(std::move(done)), call_(grpcxx_call_new()) {}

Operation::~Operation() { grpcxx_call_release(call_); }

void Operation::Begin() {
  // Before anything that could wait: a cancel must never find nobody.
  options_->SetCancelCallback([this] {
    std::lock_guard<std::mutex> lock(mutex_);
    is_cancelled_ = true;
    grpcxx_call_cancel(call_);
  });
  bool is_known = false;
  NoStar no_star;
  const std::shared_ptr<Peer> peer = worker_->route().Current(&is_known, &no_star);
  if (is_known) return Take(peer, no_star);
  worker_->route().WhenKnown([this](const std::shared_ptr<Peer>& found, const NoStar& why) { Take(found, why); });
}

void Operation::Take(const std::shared_ptr<Peer>& peer, const NoStar& no_star) {
  if (peer == nullptr) return Fall(no_star);
  if (!IsServedBy(*peer)) {
    const absl::Status why = absl::FailedPreconditionError("its version of grpcxx knows no such call");
    worker_->TellFallback(Fallback::kNoPlugin, std::string(why.message()));
    return Fall({Fallback::kNoPlugin, why});
  }
  if (attempts_ >= kAttemptsMax) {
    const absl::Status why =
        absl::UnavailableError("calls found no connection to its star port several times in a row");
    worker_->TellFallback(Fallback::kUnreachable, std::string(why.message()));
    return Fall({Fallback::kUnreachable, why});
  }
  ++attempts_;
  peer_ = peer;
  OverStar(peer);
}

void Operation::Fall(const NoStar& no_star) {
  const absl::Status allowed = worker_->route().MayFall(Method(), no_star);
  if (!allowed.ok()) return EndLater(allowed);
  CountFallback(no_star.reason);
  bool is_cancelled;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_cancelled = is_cancelled_;
  }
  if (is_cancelled) return EndLater(absl::CancelledError("the step was cancelled"));
  // gRPC sets a cancel callback of its own. A cancel between the check above and that would find ours, which only
  // remembers; so look once more, unless the call has ended meanwhile.
  struct Watch {
    std::mutex mutex;
    bool has_ended = false;
  };
  auto watch = std::make_shared<Watch>();
  tensorflow::CallOptions* const options = options_;
  OverGrpc([this, watch](const absl::Status& status) {
    {
      std::lock_guard<std::mutex> lock(watch->mutex);
      watch->has_ended = true;
    }
    End(status);
  });
  std::lock_guard<std::mutex> lock(watch->mutex);
  if (watch->has_ended) return;
  {
    std::lock_guard<std::mutex> own_lock(mutex_);
    is_cancelled = is_cancelled_;
  }
  if (is_cancelled) options->StartCancel();
}

void Operation::Failed(const grpcxx_status* status) {
  const int32_t reason = grpcxx_status_reason(status);
  if (reason == GRPCXX_REASON_QUEUE_FULL && BeginAgain()) {
    return Timer::Instance().RunAfter(kAgainAfter, [this] { worker_->Run([this] { OverStar(peer_); }); });
  }
  // The answers that are awaited may depend on this call.
  if (reason == GRPCXX_REASON_TOO_MANY_CALLS && BeginAgain()) {
    return worker_->Run([this] {
      const absl::Status why = absl::ResourceExhaustedError(
          "more calls to it are under way than GRPCXX_OUTSTANDING_CALLS_MAX or GRPCXX_WAITING_CALLS_MAX allow");
      worker_->TellFallback(Fallback::kCalls, std::string(why.message()));
      Fall({Fallback::kCalls, why});
    });
  }
  if (reason == GRPCXX_REASON_NO_CONNECTION) {
    worker_->route().Lost(peer_);
    if (BeginAgain()) {
      // Asking for the route may resolve names: not on a thread of the engine.
      return worker_->Run([this] {
        worker_->route().WhenKnown(
            [this](const std::shared_ptr<Peer>& found, const NoStar& why) { Take(found, why); });
      });
    }
  }
  const int32_t code = grpcxx_status_code(status);
  if (code == GRPCXX_UNAVAILABLE) worker_->route().Lost(peer_);
  Add(code == GRPCXX_CANCELLED ? Count().receives_cancelled : Count().receives_failed);
  End(FromPeer(status, worker_->target(), Method()));
}

bool Operation::BeginAgain() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_cancelled_) return false;
  grpcxx_call_release(call_);
  call_ = grpcxx_call_new();
  return true;
}

void Operation::Carry(grpcxx_call* call) {
  std::lock_guard<std::mutex> lock(mutex_);
  grpcxx_call_release(call_);
  call_ = grpcxx_call_retain(call);
  if (is_cancelled_) grpcxx_call_cancel(call_);
}

void Operation::End(const absl::Status& status) {
  options_->ClearCancelCallback();
  const tensorflow::StatusCallback done = std::move(done_);
  // The worker may belong to a cache that ends with this call.
  delete this;
  done(status);
}

void Operation::EndLater(const absl::Status& status) {
  worker_->Run([this, status] { End(status); });
}

TensorReceive::TensorReceive(std::shared_ptr<RemoteWorker> worker, tensorflow::CallOptions* options,
                             const tensorflow::RecvTensorRequest* request, tensorflow::TensorResponse* response,
                             tensorflow::StatusCallback done)
    : Operation(std::move(worker), options, std::move(done)),
      request_(request),
      response_(response),
      open_(this->worker().target(), request->step_id(), request->rendezvous_key()),
      landing_(response, this->worker().has_plain_memory()),
      trace_(TraceReceive(this->worker().target(), request->rendezvous_key())) {
  if (Fuser* fuser = this->worker().fuser()) history_ = fuser->History(request->rendezvous_key());
}

TensorReceive::~TensorReceive() = default;

void TensorReceive::OverStar(const std::shared_ptr<Peer>& peer) {
  if (Trace::Active()) {
    traced_ = peer;
    // Told before what is asked now arrives: the shard of the peer does both.
    Peer::LearnMedium(peer);
  }
  if (history_ != nullptr && peer->FusesPartly() && worker().fuser()->Offer(this, peer)) return;
  SendAlone(peer);
}

void TensorReceive::SendAlone(const std::shared_ptr<Peer>& peer) {
  grpcxx_recv_tensor(peer->handle, call(), step_id(), key().data(), key().size(), nullptr, &TensorReceive::Allocate,
                     &TensorReceive::Done, this);
}

grpcxx_status* TensorReceive::AllocateFor(const grpcxx_tensor_meta& meta, grpcxx_memory* memory) {
  return ToEngine(landing_.Allocate(meta, memory));
}

void TensorReceive::ArrivedTogether(const std::shared_ptr<Peer>& peer, const grpcxx_tensor* tensor) {
  if (!IsLate(tensor)) return Arrived(tensor, true);
  Add(Count().fused_tensors_late);
  worker().fuser()->WasLate(*history_);
  grpcxx_call* alone = grpcxx_call_new();
  Carry(alone);
  grpcxx_call_release(alone);
  SendAlone(peer);
}

void TensorReceive::OverGrpc(tensorflow::StatusCallback done) {
  worker().grpc()->RecvTensorAsync(options(), request_, response_, std::move(done));
}

grpcxx_status* TensorReceive::Allocate(void* user, size_t, const grpcxx_tensor_meta* meta, grpcxx_memory* memory) {
  return static_cast<TensorReceive*>(user)->AllocateFor(*meta, memory);
}

void TensorReceive::Done(void* user, const grpcxx_status* status, grpcxx_tensor* const* tensors, size_t) {
  auto* receive = static_cast<TensorReceive*>(user);
  if (status != nullptr) return receive->Failed(status);
  receive->Arrived(tensors[0], false);
}

void TensorReceive::Arrived(const grpcxx_tensor* tensor, bool with_others) {
  if (history_ != nullptr) worker().fuser()->Arrived(*history_, grpcxx_tensor_data_size(tensor), with_others);
  landing_.Detach(tensor);
  if (landing_.IsSlowToFinish()) return worker().Run([this] { Finish(); });
  Finish();
}

void TensorReceive::Finish() {
  const absl::Status status = landing_.Finish();
  if (status.ok()) {
    if (traced_ != nullptr) AddArrival(&trace_, landing_.size(), traced_->medium());
    Add(Count().received_tensors);
    Add(Count().received_bytes, landing_.size());
    Add(Count().received_in_place_bytes, landing_.size_in_place());
  } else {
    Add(Count().receives_failed);
  }
  End(status);
}

}  // namespace grpcxx_tensorflow
