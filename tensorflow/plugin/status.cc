#include "status.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tensorflow/core/platform/status.h"

namespace grpcxx_tensorflow {
namespace {

// How star marks a failure that only follows from another one.
constexpr char kDerivedMark[] = "[_Derived_]";

absl::Status Make(int32_t code, absl::string_view message) {
  const bool derived = absl::ConsumePrefix(&message, kDerivedMark);
  absl::Status status(static_cast<absl::StatusCode>(code), message);
  return derived ? tsl::StatusGroup::MakeDerived(status) : status;
}

absl::string_view Message(const grpcxx_status* status) {
  size_t size = 0;
  const char* message = grpcxx_status_message(status, &size);
  return absl::string_view(message, size);
}

}  // namespace

absl::Status FromEngine(const grpcxx_status* status) {
  if (status == nullptr) return absl::OkStatus();
  return Make(grpcxx_status_code(status), Message(status));
}

absl::Status TakeFromEngine(grpcxx_status* status) {
  absl::Status result = FromEngine(status);
  grpcxx_status_free(status);
  return result;
}

absl::Status FromPeer(const grpcxx_status* status, const std::string& target, const char* method) {
  if (status == nullptr) return absl::OkStatus();
  return Make(grpcxx_status_code(status),
              absl::StrCat(Message(status), "\nAdditional GRPC error information from remote target ", target,
                           " while calling ", method, " over grpc++"));
}

void AnswerError(grpcxx_responder* responder, const absl::Status& status) {
  std::string message(status.message());
  if (tsl::StatusGroup::IsDerived(status) && !absl::StartsWith(message, kDerivedMark)) {
    message.insert(0, kDerivedMark);
  }
  if (message.empty()) message = absl::StatusCodeToString(status.code());
  grpcxx_responder_answer_error(responder, static_cast<int32_t>(status.code()), message.data(), message.size());
}

}  // namespace grpcxx_tensorflow
