#ifndef GRPCXX_TENSORFLOW_ROUTE_H_
#define GRPCXX_TENSORFLOW_ROUTE_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "counters.h"
#include "engine.h"
#include "grpcxx.h"
#include "tensorflow/core/protobuf/worker.pb.h"

namespace grpcxx_tensorflow {

class RemoteWorker;

// A star port that has answered.
struct Peer {
  Peer(grpcxx_peer* handle, uint32_t features) : handle(handle), features(features) {}
  ~Peer() { grpcxx_peer_release(handle); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  bool FusesPartly() const { return (features & Announcement::kFusePartly) != 0; }
  bool RunsSteps() const { return (features & Announcement::kSteps) != 0; }
  bool ServesBuffers() const { return (features & Announcement::kRecvBuf) != 0; }

  // What carried its connection when that was asked last: "tcp", "shm" or "rdma".
  const char* medium() const { return medium_.load(std::memory_order_relaxed); }
  static void LearnMedium(const std::shared_ptr<Peer>& peer);

  grpcxx_peer* const handle;
  const uint32_t features;

 private:
  std::atomic<const char*> medium_{"tcp"};
};

// Why calls to a task do not go over star.
struct NoStar {
  Fallback reason = Fallback::kNoPlugin;
  // The code is for calls that must not go over gRPC either. Such calls may wait for a task that comes back if it is
  // UNAVAILABLE, as they do for one that does not answer over gRPC.
  absl::Status why;
};

// Knows which way the calls to one task go.
//
// Asks the task over gRPC for its announcement, then asks the star port itself, and only then uses it. A lost
// connection begins this again; a task without the plugin, or behind a blocked port, is asked again after a while.
// Where TLS is wanted calls do not go over gRPC, which has none: they fail.
class Route : public std::enable_shared_from_this<Route> {
 public:
  using Clock = std::chrono::steady_clock;
  // Goes on with a call: over star if there is a peer, else over gRPC for this reason.
  using Use = std::function<void(const std::shared_ptr<Peer>& peer, const NoStar& no_star)>;

  Route(std::shared_ptr<Engine> engine, std::weak_ptr<RemoteWorker> worker, std::string target,
        std::string grpc_address);

  // The peer, if one is known to be there. Otherwise `no_star` says why calls go over gRPC, and the result is nullptr with
  // `*is_known` true; or the route is not known yet.
  std::shared_ptr<Peer> Current(bool* is_known, NoStar* no_star);

  // Calls `use` as soon as the route is known; may be right here.
  void WhenKnown(Use use);

  // `peer` did not answer: its connection was lost.
  void Lost(const std::shared_ptr<Peer>& peer);

  // Finds out whether calls may go over gRPC, which has no TLS. May look a name up: not on a thread of the engine, where
  // it would be refused, and so would calls until the task is asked next.
  void RefreshPlain();
  // What that has found.
  absl::Status CheckPlain();

  // Whether a call of this method, which does not go over star, may go over gRPC; a refusal is counted, and says why it
  // is one.
  absl::Status MayFall(const char* method, const NoStar& no_star);

  // Somebody has asked the task for its status. If it has restarted meanwhile, the route is no longer known.
  void Saw(const tensorflow::GetStatusResponse& response);

 private:
  enum class State { kUnknown, kStar, kGrpc };
  struct Question;

  void Ask(std::unique_lock<std::mutex> lock);
  void Answered(const absl::Status& status, std::shared_ptr<Question> question);
  void Probe(std::shared_ptr<Question> question, const Announcement& announcement);
  static void Probed(void* user, const grpcxx_status* status, const void* data, size_t size);
  void UseStar(std::shared_ptr<Peer> peer, uint64_t incarnation, const std::string& address);
  void Unreachable(absl::Status why);
  void UseGrpc(NoStar no_star, Clock::duration ask_again_after);
  // Why calls fail that go neither over star nor over gRPC.
  std::string Refusal(const NoStar& no_star, const absl::Status& plain) const;
  // Says in the log which way calls go, unless that is what was said last.
  void Tell(const NoStar& no_star);
  void Settle(std::unique_lock<std::mutex> lock);

  const std::shared_ptr<Engine> engine_;
  const std::weak_ptr<RemoteWorker> worker_;
  const std::string target_;
  const std::string grpc_address_;

  std::mutex mutex_;
  State state_ = State::kUnknown;
  bool is_asking_ = false;
  std::shared_ptr<Peer> peer_;
  uint64_t incarnation_ = 0;
  NoStar no_star_;
  // Calls must not go over gRPC either, as far as is known.
  bool is_forbidden_ = false;
  Clock::time_point ask_again_at_{};
  std::chrono::milliseconds unreachable_for_;
  std::string last_told_;
  std::vector<Use> waiting_;

  std::mutex plain_mutex_;
  absl::Status plain_;
};

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_ROUTE_H_
