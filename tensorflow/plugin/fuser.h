#ifndef GRPCXX_TENSORFLOW_FUSER_H_
#define GRPCXX_TENSORFLOW_FUSER_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "route.h"

namespace grpcxx_tensorflow {

class TensorReceive;

// What was learned of the tensors behind one rendezvous key, which is the same in every step.
struct KeyHistory {
  // Bytes of the last one; kNotSeen before the first.
  static constexpr uint64_t kNotSeen = ~uint64_t{0};
  uint64_t size = kNotSeen;
  // How many receives left together with the last one; 0: not known.
  uint32_t company = 0;
  // How often it is received alone before it may share a request again.
  uint32_t alone_for = 0;
  // How often it was not there when the others were.
  uint32_t times_late = 0;
};

// Lets receives of one step from one peer leave as one request.
//
// Only tensors that were small before share a request; a key that has not been seen goes alone. A group leaves as soon
// as it is as large as it was the last time, so that in a steady state nothing waits; otherwise when no receive has
// joined it for a moment. A peer answers a group before all of its tensors are there: those that are late are
// asked for alone, and their keys do not share requests for a while.
class Fuser : public std::enable_shared_from_this<Fuser> {
 public:
  // Takes a receive into a group, or leaves it to go alone at once.
  bool Offer(TensorReceive* receive, const std::shared_ptr<Peer>& peer);

  // The history of a key. Keys that have not come for long are forgotten.
  std::shared_ptr<KeyHistory> History(const std::string& key);

  // A tensor has arrived, with others or alone.
  void Arrived(KeyHistory& history, uint64_t size, bool with_others);
  // A tensor was late.
  void WasLate(KeyHistory& history);

 private:
  struct Group {
    int64_t step_id;
    std::shared_ptr<Peer> peer;
    std::vector<TensorReceive*> receives;
    // All keys of this run, those that have left already in full requests too.
    std::vector<std::shared_ptr<KeyHistory>> histories;
    uint32_t company_expected = 0;
    uint32_t size_at_last_look = 0;
    int looks = 0;
  };

  void LookLater(const std::shared_ptr<Group>& group);
  void Look(const std::shared_ptr<Group>& group);
  // Takes the receives of a group out, and remembers how many they were.
  std::vector<TensorReceive*> Close(const std::shared_ptr<Group>& group);

  std::mutex mutex_;
  using Histories = std::unordered_map<std::string, std::shared_ptr<KeyHistory>>;

  Histories histories_;
  // Those of keys that have not come since the others were too many.
  Histories old_histories_;
  std::vector<std::shared_ptr<Group>> groups_;
};

// Sends receives of one step as one request. They end one by one as if they had gone alone.
void SendFused(const std::shared_ptr<Peer>& peer, int64_t step_id, std::vector<TensorReceive*> receives);

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_FUSER_H_
