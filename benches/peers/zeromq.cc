// ZeroMQ: a ROUTER that answers, a DEALER for each connection; each tensor is a part of a message, sent without a copy.

#include <map>
#include <memory>

#include <zmq.h>

#include "bench.h"

namespace {

using bench::Clock;
using bench::Head;

void check(bool ok, const char* what) {
  if (!ok) bench::fail(std::string(what) + ": " + zmq_strerror(zmq_errno()));
}

void nothing(void*, void*) {}

// Sends tensors that outlive the message.
void send_tensors(void* socket, std::vector<char>& memory, size_t size, size_t count) {
  for (size_t index = 0; index < count; ++index) {
    zmq_msg_t part;
    zmq_msg_init_data(&part, memory.data() + index * size, size, nothing, nullptr);
    check(zmq_msg_send(&part, socket, index + 1 < count ? ZMQ_SNDMORE : 0) >= 0, "send");
  }
}

// Receives the rest of a message; returns its bytes.
size_t receive_rest(void* socket) {
  size_t bytes = 0;
  for (bool more = true; more;) {
    zmq_msg_t part;
    zmq_msg_init(&part);
    check(zmq_msg_recv(&part, socket, 0) >= 0, "receive");
    bytes += zmq_msg_size(&part);
    more = zmq_msg_more(&part);
    zmq_msg_close(&part);
  }
  return bytes;
}

int serve(void* context, const bench::Options& options) {
  void* socket = zmq_socket(context, ZMQ_ROUTER);
  int unlimited = 0;
  zmq_setsockopt(socket, ZMQ_SNDHWM, &unlimited, sizeof unlimited);
  zmq_setsockopt(socket, ZMQ_RCVHWM, &unlimited, sizeof unlimited);
  check(zmq_bind(socket, ("tcp://" + options.address).c_str()) == 0, "listen");
  char endpoint[256];
  size_t length = sizeof endpoint;
  zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint, &length);
  printf("ready star=%s\n", endpoint + strlen("tcp://"));
  fflush(stdout);
  std::map<std::pair<size_t, size_t>, std::vector<char>> tensors;
  for (;;) {
    char peer[256];
    int peer_length = zmq_recv(socket, peer, sizeof peer, 0);
    check(peer_length >= 0, "receive");
    Head head{};
    check(zmq_recv(socket, &head, sizeof head, 0) >= 0, "receive");
    int more = 0;
    length = sizeof more;
    zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &length);
    if (more) receive_rest(socket);
    check(zmq_send(socket, peer, peer_length, ZMQ_SNDMORE) >= 0, "send");
    if (head.kind == 0) {
      auto& memory = tensors[{head.size, head.count}];
      memory.resize(head.size * head.count, 9);
      send_tensors(socket, memory, head.size, head.count);
    } else if (head.kind == 2) {
      double seconds = bench::cpu_seconds();
      check(zmq_send(socket, &seconds, sizeof seconds, 0) >= 0, "send");
    } else {
      check(zmq_send(socket, &head, sizeof head, 0) >= 0, "send");
    }
  }
}

struct Slot {
  Clock::time_point begin;
  bool pushing;
};

int run(void* context, const bench::Options& options) {
  std::vector<zmq_pollitem_t> items;
  for (size_t index = 0; index < options.connections; ++index) {
    void* socket = zmq_socket(context, ZMQ_DEALER);
    int unlimited = 0, linger = 0;
    zmq_setsockopt(socket, ZMQ_SNDHWM, &unlimited, sizeof unlimited);
    zmq_setsockopt(socket, ZMQ_RCVHWM, &unlimited, sizeof unlimited);
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    check(zmq_connect(socket, ("tcp://" + options.address).c_str()) == 0, "connect");
    items.push_back({socket, 0, ZMQ_POLLIN, 0});
  }
  std::vector<char> memory(options.pushes() ? options.size * options.count : 0, 7);
  auto send = [&](size_t connection, uint64_t kind) {
    Head head{kind, options.size, options.count};
    void* socket = items[connection].socket;
    check(zmq_send(socket, &head, sizeof head, kind == 1 ? ZMQ_SNDMORE : 0) >= 0, "send");
    if (kind == 1) send_tensors(socket, memory, options.size, options.count);
  };
  auto server_seconds = [&]() {
    send(0, 2);
    double seconds = 0;
    check(zmq_recv(items[0].socket, &seconds, sizeof seconds, 0) >= 0, "receive");
    return seconds;
  };
  double server_before = server_seconds(), client_before = bench::cpu_seconds();
  bench::Times times(options.seconds);
  // Answers of a connection come in the order of its requests.
  std::vector<std::vector<Slot>> slots(options.connections);
  std::vector<size_t> heads(options.connections, 0);
  size_t open = 0;
  for (size_t connection = 0; connection < options.connections; ++connection) {
    for (size_t depth = 0; depth < options.depth; ++depth, ++open) {
      slots[connection].push_back({Clock::now(), !options.pulls()});
      send(connection, !options.pulls());
    }
  }
  auto answer = [&](size_t connection) {
    size_t bytes = receive_rest(items[connection].socket);
    Slot& slot = slots[connection][heads[connection]];
    size_t expected = slot.pushing ? sizeof(Head) : options.size * options.count;
    if (bytes != expected) bench::fail("an answer has the wrong length");
    heads[connection] = (heads[connection] + 1) % options.depth;
    if (options.op == "ps" && !slot.pushing) {
      slot.pushing = true;
      send(connection, 1);
      return;
    }
    auto now = Clock::now();
    times.record(slot.begin, now);
    if (times.is_over(now)) {
      --open;
      return;
    }
    slot = {now, !options.pulls()};
    send(connection, slot.pushing);
  };
  while (open > 0) {
    if (items.size() == 1) {
      answer(0);
      continue;
    }
    check(zmq_poll(items.data(), int(items.size()), 10'000) >= 0, "poll");
    for (size_t connection = 0; connection < items.size(); ++connection) {
      if (!(items[connection].revents & ZMQ_POLLIN)) continue;
      int events = ZMQ_POLLIN;
      for (size_t taken = 0; taken < options.depth && (events & ZMQ_POLLIN) && open > 0; ++taken) {
        answer(connection);
        size_t length = sizeof events;
        zmq_getsockopt(items[connection].socket, ZMQ_EVENTS, &events, &length);
      }
    }
  }
  double client = bench::cpu_seconds() - client_before;
  times.print(options, "tcp", "zeromq", client, server_seconds() - server_before);
  for (auto& item : items) zmq_close(item.socket);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  auto options = bench::read(argc, argv);
  void* context = zmq_ctx_new();
  return options.serve ? serve(context, options) : run(context, options);
}
