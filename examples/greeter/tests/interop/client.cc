// Calls a task's services with gRPC C++ and the stubs that protoc has made of the .proto files.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "helloworld.grpc.pb.h"
#include "probe.grpc.pb.h"

namespace {

void check(bool holds, const char* what, const std::string& found = "") {
  if (holds) return;
  fprintf(stderr, "failed: %s; %s\n", what, found.c_str());
  exit(1);
}

void check(const grpc::Status& status, grpc::StatusCode expected, const char* what) {
  check(status.error_code() == expected, what,
        "code " + std::to_string(status.error_code()) + ": " + status.error_message());
}

struct Context : grpc::ClientContext {
  explicit Context(int milliseconds = 20000) {
    set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(milliseconds));
  }
};

helloworld::HelloRequest named(const std::string& name) {
  helloworld::HelloRequest request;
  request.set_name(name);
  return request;
}

void unary(helloworld::Greeter::Stub& greeter, probe::Probe::Stub& probe) {
  helloworld::HelloReply reply;
  Context context;
  check(greeter.SayHello(&context, named("gRPC C++"), &reply), grpc::OK, "SayHello");
  check(reply.message() == "Hello gRPC C++!", "the answer of SayHello", reply.message());

  probe::Load load, answer;
  load.set_data(std::string(2 << 20, 'x'));
  load.set_note("beside it");
  Context with_metadata;
  with_metadata.AddMetadata("user", "worker 0");
  with_metadata.AddMetadata("trace-bin", std::string("\0\xff", 2));
  check(probe.Echo(&with_metadata, load, &answer), grpc::OK, "Echo");
  check(answer.data() == load.data() && answer.note() == load.note(), "the answer of Echo");
  const auto& head = with_metadata.GetServerInitialMetadata();
  auto user = head.find("user"), trace = head.find("trace-bin");
  check(user != head.end() && user->second == "worker 0", "metadata that is text");
  check(trace != head.end() && trace->second == grpc::string_ref("\0\xff", 2), "metadata that is bytes");
  puts("passed unary");
}

void failures(probe::Probe::Stub& probe) {
  for (int number = 1; number <= 16; ++number) {
    probe::Code code;
    probe::Load answer;
    code.set_number(number);
    Context context;
    auto status = probe.Fail(&context, code, &answer);
    check(status, grpc::StatusCode(number), "Fail");
    check(status.error_message() == "as it was told", "the text of Fail", status.error_message());
  }
  probe::Span span;
  probe::Load answer;
  span.set_milliseconds(60000);
  Context in_time(200);
  check(probe.Wait(&in_time, span, &answer), grpc::DEADLINE_EXCEEDED, "Wait");
  puts("passed failures");
}

void server_streams(helloworld::Greeter::Stub& greeter, probe::Probe::Stub& probe) {
  helloworld::HellosRequest request;
  request.set_name("you");
  request.set_times(1000);
  Context context;
  auto replies = greeter.SayHellos(&context, request);
  helloworld::HelloReply reply;
  int count = 0;
  while (replies->Read(&reply)) {
    auto expected = "Hello you, " + std::to_string(++count) + " of 1000!";
    check(reply.message() == expected, "a message of SayHellos", reply.message());
  }
  check(replies->Finish(), grpc::OK, "SayHellos");
  check(count == 1000, "the number of messages");

  probe::Order order;
  probe::Load load;
  order.set_messages(3);
  order.set_bytes(10);
  order.set_code(grpc::NOT_FOUND);
  Context ends_with_code;
  auto loads = probe.Flood(&ends_with_code, order);
  for (count = 0; loads->Read(&load); ++count) check(load.data().size() == 10, "a message of Flood");
  check(loads->Finish(), grpc::NOT_FOUND, "Flood");
  check(count == 3, "the messages before the status");

  order.set_messages(1000000);
  order.set_bytes(1000);
  order.set_code(0);
  Context left;
  auto endless = probe.Flood(&left, order);
  check(endless->Read(&load), "the first message of many");
  left.TryCancel();
  while (endless->Read(&load)) continue;
  check(endless->Finish(), grpc::CANCELLED, "a Flood that was cancelled");
  puts("passed server streams");
}

void client_stream(probe::Probe::Stub& probe) {
  probe::Span sum;
  Context context;
  auto loads = probe.Count(&context, &sum);
  for (size_t length : {0, 1, 5000, 1 << 20, 7}) {
    probe::Load load;
    load.set_data(std::string(length, 'x'));
    check(loads->Write(load), "a message to Count");
  }
  loads->WritesDone();
  check(loads->Finish(), grpc::OK, "Count");
  check(sum.milliseconds() == 1 + 5000 + (1 << 20) + 7, "the sum of Count");
  puts("passed client stream");
}

void both_ways(helloworld::Greeter::Stub& greeter) {
  Context context;
  auto chat = greeter.Chat(&context);
  helloworld::HelloReply reply;
  // Each answer comes before the next question is asked.
  for (int number = 0; number < 100; ++number) {
    auto name = std::to_string(number);
    check(chat->Write(named(name)), "a message to Chat");
    check(chat->Read(&reply) && reply.message() == "Hello " + name + "!", "an answer of Chat", reply.message());
  }
  chat->WritesDone();
  check(!chat->Read(&reply), "the end of Chat");
  check(chat->Finish(), grpc::OK, "Chat");
  puts("passed both ways");
}

}  // namespace

int main(int, char** arguments) {
  auto channel = grpc::CreateChannel(arguments[1], grpc::InsecureChannelCredentials());
  auto greeter = helloworld::Greeter::NewStub(channel);
  auto probe = probe::Probe::NewStub(channel);
  unary(*greeter, *probe);
  failures(*probe);
  server_streams(*greeter, *probe);
  client_stream(*probe);
  both_ways(*greeter);
  return 0;
}
