#include "groups.h"

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace grpcxx_tensorflow {
namespace {

// As many as a group of the engine has.
constexpr size_t kMostTags = 1024;

using Named = std::map<std::string, std::shared_ptr<Group>>;

std::mutex& GroupsMutex() {
  static std::mutex* const mutex = new std::mutex;
  return *mutex;
}

// Kernels may ask until the process is gone.
Named& Groups() {
  static Named* const groups = new Named;
  return *groups;
}

}  // namespace

// What waits under one tag, and the thread that runs it. The thread has a share, and ends when the group is gone.
class Group::Lane {
 public:
  static std::shared_ptr<Lane> Start() {
    auto lane = std::make_shared<Lane>();
    std::thread thread([lane] { lane->Loop(); });
    pthread_setname_np(thread.native_handle(), "grpcxx-group");
    thread.detach();
    return lane;
  }

  void Push(std::function<void()> code) {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back(std::move(code));
    changed_.notify_one();
  }

  void Close() {
    std::lock_guard<std::mutex> lock(mutex_);
    is_closed_ = true;
    changed_.notify_one();
  }

 private:
  void Loop() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return is_closed_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      std::function<void()> code = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      code();
      // It may hold the last share of the group, which closes this lane.
      code = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool is_closed_ = false;
};

absl::StatusOr<std::shared_ptr<Group>> Group::Find(const std::string& name) {
  std::lock_guard<std::mutex> lock(GroupsMutex());
  const auto found = Groups().find(name);
  if (found == Groups().end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("there is no group ", name, " in this process: it is closed, or the op was made in another"
                     " process. Trace the function again with a group that is open"));
  }
  return found->second;
}

void Group::Put(const std::string& name, grpcxx_group* handle) {
  auto group = std::make_shared<Group>(handle);
  std::lock_guard<std::mutex> lock(GroupsMutex());
  // What was there ends behind the lock.
  Groups()[name].swap(group);
}

void Group::Remove(const std::string& name) {
  std::shared_ptr<Group> removed;
  std::lock_guard<std::mutex> lock(GroupsMutex());
  const auto found = Groups().find(name);
  if (found == Groups().end()) return;
  removed = std::move(found->second);
  Groups().erase(found);
}

Group::~Group() {
  for (auto& [tag, lane] : lanes_) lane->Close();
  grpcxx_group_free(handle_);
}

absl::Status Group::Run(uint16_t tag, std::function<void()> code) {
  if (getpid() != process_) {
    return absl::FailedPreconditionError(
        absl::StrCat("process ", getpid(), " was forked from ", process_, ", which has joined the group: a forked"
                     " process has no threads that run its ops. Join a group there, or start processes by spawn"));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = lanes_.find(tag);
  if (found == lanes_.end()) {
    if (lanes_.size() >= kMostTags) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the ops of this group use ", kMostTags, " tags, which is the most: use one of them again"));
    }
    try {
      found = lanes_.emplace(tag, Lane::Start()).first;
    } catch (const std::system_error& error) {
      return absl::ResourceExhaustedError(absl::StrCat("no thread can be started for the ops of tag ", tag, ": ",
                                                       error.what(), ". Raise the limit, or use fewer tags"));
    }
  }
  found->second->Push([group = shared_from_this(), code = std::move(code)] { code(); });
  return absl::OkStatus();
}

}  // namespace grpcxx_tensorflow

// What `grpcxx.tensorflow` in Python calls: gives a handle of a group to the ops that name it, and takes it back.
extern "C" __attribute__((visibility("default"))) void GrpcxxTensorFlowPutGroup(const char* name,
                                                                                grpcxx_group* group) {
  grpcxx_tensorflow::Group::Put(name, group);
}

extern "C" __attribute__((visibility("default"))) void GrpcxxTensorFlowRemoveGroup(const char* name) {
  grpcxx_tensorflow::Group::Remove(name);
}
