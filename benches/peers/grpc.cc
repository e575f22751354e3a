// gRPC C++ with ByteBuffers: payloads are referenced, not serialized; each tensor is a slice.
// Both sides use one completion queue and one thread, as one shard does; a connection is a channel of its own.

#include <map>
#include <memory>

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include "bench.h"

namespace {

using bench::Clock;
using bench::Head;
using grpc::ByteBuffer;
using grpc::Slice;

// Tensors in memory that outlives all calls.
class Tensors {
 public:
  Tensors(size_t size, size_t count) : memory_(size * count, 9) {
    for (size_t index = 0; index < count; ++index)
      slices_.emplace_back(memory_.data() + index * size, size, Slice::STATIC_SLICE);
  }
  const std::vector<Slice>& slices() const { return slices_; }

 private:
  std::vector<char> memory_;
  std::vector<Slice> slices_;
};

ByteBuffer buffer(const void* head, size_t length, const Tensors* tensors) {
  std::vector<Slice> slices;
  if (length) slices.emplace_back(head, length);
  if (tensors) slices.insert(slices.end(), tensors->slices().begin(), tensors->slices().end());
  return ByteBuffer(slices.data(), slices.size());
}

// The first bytes of a message, which may lie in several slices.
bool read_head(const ByteBuffer& message, void* head, size_t length) {
  std::vector<Slice> slices;
  if (!message.Dump(&slices).ok()) return false;
  size_t have = 0;
  for (const Slice& slice : slices) {
    size_t part = std::min(length - have, slice.size());
    memcpy(static_cast<char*>(head) + have, slice.begin(), part);
    have += part;
    if (have == length) return true;
  }
  return false;
}

class Serving {
 public:
  Serving(grpc::AsyncGenericService* service, grpc::ServerCompletionQueue* queue,
          std::map<std::pair<size_t, size_t>, Tensors>* tensors)
      : service_(service), queue_(queue), tensors_(tensors), stream_(&context_) {
    service_->RequestCall(&context_, &stream_, queue_, queue_, this);
  }

  void next(bool ok) {
    if (!ok || state_ == kDone) {
      delete this;
      return;
    }
    if (state_ == kWaiting) {
      new Serving(service_, queue_, tensors_);
      state_ = kReading;
      stream_.Read(&request_, this);
      return;
    }
    state_ = kDone;
    stream_.WriteAndFinish(answer(), grpc::WriteOptions(), grpc::Status::OK, this);
  }

 private:
  ByteBuffer answer() {
    Head head{};
    read_head(request_, &head, sizeof head);
    if (head.kind == 0) {
      auto found = tensors_->find({head.size, head.count});
      if (found == tensors_->end())
        found = tensors_->emplace(std::piecewise_construct, std::forward_as_tuple(head.size, head.count),
                                  std::forward_as_tuple(head.size, head.count)).first;
      return buffer(nullptr, 0, &found->second);
    }
    if (head.kind == 2) {
      double seconds = bench::cpu_seconds();
      return buffer(&seconds, sizeof seconds, nullptr);
    }
    return buffer(&head, sizeof head, nullptr);
  }

  enum { kWaiting, kReading, kDone } state_ = kWaiting;
  grpc::AsyncGenericService* service_;
  grpc::ServerCompletionQueue* queue_;
  std::map<std::pair<size_t, size_t>, Tensors>* tensors_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_;
  ByteBuffer request_;
};

int serve(const bench::Options& options) {
  grpc::AsyncGenericService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(options.address, grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(-1).SetMaxSendMessageSize(-1);
  builder.RegisterAsyncGenericService(&service);
  auto queue = builder.AddCompletionQueue();
  auto server = builder.BuildAndStart();
  if (!server) bench::fail("cannot listen on " + options.address);
  std::map<std::pair<size_t, size_t>, Tensors> tensors;
  for (int waiting = 0; waiting < 64; ++waiting) new Serving(&service, queue.get(), &tensors);
  printf("ready star=127.0.0.1:%d\n", port);
  fflush(stdout);
  void* tag;
  bool ok;
  while (queue->Next(&tag, &ok)) static_cast<Serving*>(tag)->next(ok);
  return 0;
}

struct Call {
  size_t slot;
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
  ByteBuffer answer;
  grpc::Status status;
  Clock::time_point begin;
  bool pushing;
};

int run(const bench::Options& options) {
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs;
  for (size_t index = 0; index < options.connections; ++index) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetMaxSendMessageSize(-1);
    auto channel = grpc::CreateCustomChannel(options.address, grpc::InsecureChannelCredentials(), arguments);
    if (!channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(10)))
      bench::fail("cannot connect to " + options.address);
    stubs.push_back(std::make_unique<grpc::GenericStub>(channel));
  }
  grpc::CompletionQueue queue;
  Tensors tensors(options.pushes() ? options.size : 0, options.pushes() ? options.count : 0);
  auto send = [&](Call* call, uint64_t kind) {
    Head head{kind, options.size, options.count};
    call->context = std::make_unique<grpc::ClientContext>();
    call->answer.Clear();
    auto request = buffer(&head, sizeof head, kind == 1 ? &tensors : nullptr);
    call->reader = stubs[call->slot % stubs.size()]->PrepareUnaryCall(call->context.get(), "/bench/Call", request, &queue);
    call->reader->StartCall();
    call->reader->Finish(&call->answer, &call->status, call);
  };
  auto wait = [&]() {
    void* tag;
    bool ok;
    if (!queue.Next(&tag, &ok)) bench::fail("the completion queue ended");
    Call* call = static_cast<Call*>(tag);
    if (!call->status.ok()) bench::fail(call->status.error_message());
    return call;
  };
  auto server_seconds = [&]() {
    Call question{};
    send(&question, 2);
    wait();
    double seconds = 0;
    read_head(question.answer, &seconds, sizeof seconds);
    return seconds;
  };
  double server_before = server_seconds(), client_before = bench::cpu_seconds();
  bench::Times times(options.seconds);
  std::vector<Call> calls(options.connections * options.depth);
  for (size_t slot = 0; slot < calls.size(); ++slot) {
    calls[slot].slot = slot;
    calls[slot].begin = Clock::now();
    calls[slot].pushing = !options.pulls();
    send(&calls[slot], calls[slot].pushing);
  }
  for (size_t open = calls.size(); open > 0;) {
    Call* call = wait();
    if (options.op == "ps" && !call->pushing) {
      call->pushing = true;
      send(call, 1);
      continue;
    }
    size_t expected = call->pushing ? sizeof(Head) : options.size * options.count;
    if (call->answer.Length() != expected) bench::fail("an answer has the wrong length");
    auto now = Clock::now();
    times.record(call->begin, now);
    if (times.is_over(now)) {
      --open;
      continue;
    }
    call->begin = now;
    call->pushing = !options.pulls();
    send(call, call->pushing);
  }
  double client = bench::cpu_seconds() - client_before;
  times.print(options, "grpc", "grpc++", client, server_seconds() - server_before);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  auto options = bench::read(argc, argv);
  return options.serve ? serve(options) : run(options);
}
