#include "buffer_receive.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "counters.h"
#include "status.h"
#include "tensor.h"

namespace grpcxx_tensorflow {
namespace {

template <size_t N>
grpcxx_text Text(const char (&text)[N]) {
  return {text, N - 1};
}

grpcxx_status* SizeDiffers(uint64_t size, uint64_t wanted) {
  const std::string text = absl::StrCat("a buffer of ", size, " bytes was sent where ", wanted, " were expected");
  return grpcxx_status_new(GRPCXX_INTERNAL, text.data(), text.size());
}

}  // namespace

BufferReceive::BufferReceive(std::shared_ptr<RemoteWorker> worker, tensorflow::CallOptions* options,
                             const tensorflow::RecvBufRequest* request, tensorflow::RecvBufResponse* response,
                             tensorflow::StatusCallback done)
    : Operation(std::move(worker), options, std::move(done)),
      request_(request),
      response_(response),
      open_(this->worker().target(), request->step_id(), request->buf_rendezvous_key()) {}

bool BufferReceive::IsOnHost(const tensorflow::RecvBufRequest& request) {
  return absl::StrContains(request.dst_device(), "/device:CPU:") && (request.buf_ptr() != 0 || request.num_bytes() == 0);
}

void BufferReceive::OverStar(const std::shared_ptr<Peer>& peer) {
  std::string serialized;
  request_->SerializeToString(&serialized);
  const int64_t dims[] = {static_cast<int64_t>(serialized.size())};
  grpcxx_tensor* feed = nullptr;
  if (grpcxx_status* status =
          grpcxx_tensor_copy_new(GRPCXX_UINT8, dims, 1, false, serialized.data(), serialized.size(), &feed)) {
    const absl::Status failure = TakeFromEngine(status);
    return EndLater(failure);
  }
  const grpcxx_text feed_name = Text(kRecvBufFeed);
  const grpcxx_text fetch_name = Text(kRecvBufFetch);
  grpcxx_graph_call graph_call = {};
  graph_call.struct_size = sizeof(graph_call);
  graph_call.handle = Text(kRecvBufHandle);
  graph_call.step_id = static_cast<uint64_t>(request_->step_id());
  graph_call.feed_names = &feed_name;
  graph_call.feeds = &feed;
  graph_call.num_feeds = 1;
  graph_call.fetch_names = &fetch_name;
  graph_call.num_fetches = 1;
  grpcxx_graph_call_begin(peer->handle, call(), &graph_call, nullptr, &BufferReceive::Allocate, &BufferReceive::Done,
                          this);
  grpcxx_tensor_release(feed);
}

void BufferReceive::OverGrpc(tensorflow::StatusCallback done) {
  worker().grpc()->RecvBufAsync(options(), request_, response_, std::move(done));
}

grpcxx_status* BufferReceive::Allocate(void* user, size_t, const grpcxx_tensor_meta* meta, grpcxx_memory* memory) {
  const tensorflow::RecvBufRequest& request = *static_cast<BufferReceive*>(user)->request_;
  const uint64_t wanted = static_cast<uint64_t>(request.num_bytes());
  if (meta->data_size != wanted) return SizeDiffers(meta->data_size, wanted);
  memory->data = reinterpret_cast<void*>(request.buf_ptr());
  // A collective has most of its buffers from the system for one step: small pages would cost as much as the bytes.
  AdviseHugePages(memory->data, wanted);
  return nullptr;
}

void BufferReceive::Done(void* user, const grpcxx_status* status, grpcxx_tensor* const* tensors, size_t) {
  auto* receive = static_cast<BufferReceive*>(user);
  if (status != nullptr) return receive->Failed(status);
  const uint64_t size = grpcxx_tensor_data_size(tensors[0]);
  const uint64_t wanted = static_cast<uint64_t>(receive->request_->num_bytes());
  if (size != wanted) return receive->End(TakeFromEngine(SizeDiffers(size, wanted)));
  // A response without options tells the collective that its buffer is filled.
  Add(Count().received_buffers);
  Add(Count().received_buffer_bytes, size);
  Add(Count().received_in_place_bytes, size);
  receive->End(absl::OkStatus());
}

}  // namespace grpcxx_tensorflow
