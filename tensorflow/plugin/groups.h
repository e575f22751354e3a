#ifndef GRPCXX_TENSORFLOW_GROUPS_H_
#define GRPCXX_TENSORFLOW_GROUPS_H_

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcxx.h"

namespace grpcxx_tensorflow {

// A group of ranks that Python has joined. Its operations wait for other ranks on threads of their own, one for each
// tag, so that no thread of TensorFlow is blocked.
class Group : public std::enable_shared_from_this<Group> {
 public:
  // The group of this name, which Python has put here.
  static absl::StatusOr<std::shared_ptr<Group>> Find(const std::string& name);
  // Takes the handle over. A group that had the name before keeps what it has begun.
  static void Put(const std::string& name, grpcxx_group* handle);
  static void Remove(const std::string& name);

  explicit Group(grpcxx_group* handle) : handle_(handle) {}
  ~Group();

  grpcxx_group* handle() const { return handle_; }
  uint32_t rank() const { return grpcxx_group_rank(handle_); }
  uint32_t size() const { return grpcxx_group_size(handle_); }

  // Runs code that may block, behind what was given under this tag before. Runs nothing if there is no thread for it.
  absl::Status Run(uint16_t tag, std::function<void()> code);

 private:
  class Lane;

  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  grpcxx_group* const handle_;
  // A forked process has none of the threads.
  const pid_t process_ = getpid();
  std::mutex mutex_;
  std::map<uint16_t, std::shared_ptr<Lane>> lanes_;
};

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_GROUPS_H_
