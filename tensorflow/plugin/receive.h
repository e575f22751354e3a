#ifndef GRPCXX_TENSORFLOW_RECEIVE_H_
#define GRPCXX_TENSORFLOW_RECEIVE_H_

#include <memory>
#include <mutex>
#include <string>

#include "counters.h"
#include "fuser.h"
#include "grpcxx.h"
#include "open_receives.h"
#include "remote_worker.h"
#include "route.h"
#include "tensor.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/distributed_runtime/worker_interface.h"
#include "trace.h"

namespace grpcxx_tensorflow {

// What all calls have in common that TensorFlow makes, may cancel, and that end once.
//
// Owns itself: it is gone when `done` was called.
class Operation {
 public:
  Operation(std::shared_ptr<RemoteWorker> worker, tensorflow::CallOptions* options, tensorflow::StatusCallback done);
  virtual ~Operation();

  // Takes the way that is known, or waits until one is.
  void Begin();

 protected:
  // Begins the call to a peer. It may end on another thread before this returns.
  virtual void OverStar(const std::shared_ptr<Peer>& peer) = 0;
  // Whether the peer knows this call.
  virtual bool IsServedBy(const Peer& peer) const { return true; }
  // Makes the call over gRPC instead.
  virtual void OverGrpc(tensorflow::StatusCallback done) = 0;
  // Counts a call that takes gRPC.
  virtual void CountFallback(Fallback reason) { Count().TensorFell(reason); }
  // What the peer is asked, for texts.
  virtual const char* Method() const = 0;

  grpcxx_call* call() const { return call_; }
  RemoteWorker& worker() { return *worker_; }
  tensorflow::CallOptions* options() { return options_; }

  // Lets a cancel withdraw `call`, which carries this operation and others.
  void Carry(grpcxx_call* call);

  // Handles the failure of a call to the peer: begins again if it never left, else ends with the failure.
  void Failed(const grpcxx_status* status);
  // Ends with `status`. The last thing that happens here.
  void End(const absl::Status& status);
  // Ends with `status` on another thread: whoever begins a receive waits for it if it ends before `Begin` returns.
  void EndLater(const absl::Status& status);

 private:
  void Take(const std::shared_ptr<Peer>& peer, const NoStar& no_star);
  void Fall(const NoStar& no_star);
  // Makes a call anew that was not sent; false if it was cancelled.
  bool BeginAgain();

  const std::shared_ptr<RemoteWorker> worker_;
  tensorflow::CallOptions* const options_;
  tensorflow::StatusCallback done_;
  std::shared_ptr<Peer> peer_;
  grpcxx_call* call_;
  int attempts_ = 0;

  std::mutex mutex_;
  bool is_cancelled_ = false;
};

// One tensor of a peer.
class TensorReceive : public Operation {
 public:
  TensorReceive(std::shared_ptr<RemoteWorker> worker, tensorflow::CallOptions* options,
                const tensorflow::RecvTensorRequest* request, tensorflow::TensorResponse* response,
                tensorflow::StatusCallback done);
  ~TensorReceive() override;

  // For the fuser, which sends several of these in one request.
  int64_t step_id() const { return request_->step_id(); }
  const std::string& key() const { return request_->rendezvous_key(); }
  const std::shared_ptr<KeyHistory>& history() const { return history_; }
  void Adopt(grpcxx_call* call) { Carry(call); }
  grpcxx_status* AllocateFor(const grpcxx_tensor_meta& meta, grpcxx_memory* memory);
  void ArrivedTogether(const std::shared_ptr<Peer>& peer, const grpcxx_tensor* tensor);
  void FailedTogether(const grpcxx_status* status) { Failed(status); }
  // Sends a request for this tensor only.
  void SendAlone(const std::shared_ptr<Peer>& peer);

 protected:
  void OverStar(const std::shared_ptr<Peer>& peer) override;
  void OverGrpc(tensorflow::StatusCallback done) override;
  const char* Method() const override { return "RecvTensor"; }

 private:
  static grpcxx_status* Allocate(void* user, size_t index, const grpcxx_tensor_meta* meta, grpcxx_memory* memory);
  static void Done(void* user, const grpcxx_status* status, grpcxx_tensor* const* tensors, size_t num_tensors);
  void Arrived(const grpcxx_tensor* tensor, bool with_others);
  void Finish();

  const tensorflow::RecvTensorRequest* const request_;
  tensorflow::TensorResponse* const response_;
  const OpenReceive open_;
  Landing landing_;
  Trace trace_;
  // Whom it was asked of, while somebody profiles.
  std::shared_ptr<Peer> traced_;
  // What is known of the key; nullptr if receives do not share requests.
  std::shared_ptr<KeyHistory> history_;
};

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_RECEIVE_H_
