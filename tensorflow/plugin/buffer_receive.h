#ifndef GRPCXX_TENSORFLOW_BUFFER_RECEIVE_H_
#define GRPCXX_TENSORFLOW_BUFFER_RECEIVE_H_

#include <memory>
#include <string>

#include "counters.h"
#include "open_receives.h"
#include "receive.h"

namespace grpcxx_tensorflow {

// The graph handle, feed and fetch that carry RecvBuf, which star has no message for. The feed is the serialized
// RecvBufRequest as bytes, the fetch the buffer.
inline constexpr char kRecvBufHandle[] = "grpcxx.tf.recv_buf";
inline constexpr char kRecvBufFeed[] = "request";
inline constexpr char kRecvBufFetch[] = "buffer";

// One buffer of a collective, straight into the memory that the collective names.
class BufferReceive : public Operation {
 public:
  BufferReceive(std::shared_ptr<RemoteWorker> worker, tensorflow::CallOptions* options,
                const tensorflow::RecvBufRequest* request, tensorflow::RecvBufResponse* response,
                tensorflow::StatusCallback done);

  // Whether the buffer lies in memory of the CPU.
  static bool IsOnHost(const tensorflow::RecvBufRequest& request);

 protected:
  void OverStar(const std::shared_ptr<Peer>& peer) override;
  bool IsServedBy(const Peer& peer) const override { return peer.ServesBuffers(); }
  void OverGrpc(tensorflow::StatusCallback done) override;
  const char* Method() const override { return "RecvBuf"; }

 private:
  static grpcxx_status* Allocate(void* user, size_t index, const grpcxx_tensor_meta* meta, grpcxx_memory* memory);
  static void Done(void* user, const grpcxx_status* status, grpcxx_tensor* const* tensors, size_t num_tensors);

  const tensorflow::RecvBufRequest* const request_;
  tensorflow::RecvBufResponse* const response_;
  const OpenReceive open_;
};

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_BUFFER_RECEIVE_H_
