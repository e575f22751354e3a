#include "engine.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "counters.h"
#include "graph_fusion.h"
#include "open_receives.h"
#include "pool.h"
#include "status.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace grpcxx_tensorflow {
namespace {

constexpr char kWord[] = "grpcxx=";
constexpr uint32_t kVersion = 1;

// Settings that suit a process whose threads TensorFlow needs too. The environment has the last word.
struct Setting {
  const char* name;
  const char* value;
};
constexpr Setting kSettings[] = {
    // Tensors land in TensorFlow's memory, so that the arena holds small things only.
    {"GRPCXX_ARENA_BYTES", "64MiB"},
    // A step with many tensors has as many receives under way.
    {"GRPCXX_OUTSTANDING_CALLS_MAX", "65536"},
    {"GRPCXX_WAITING_CALLS_MAX", "65536"},
    // What a step is fed with and returns travels in messages, which gRPC does not limit here.
    {"GRPCXX_MESSAGE_BYTES_MAX", "2047MiB"},
    // A star port is asked before it is used: a call that finds no connection looks for the task anew.
    {"NETWORK_MAX_CONNECTION_TIMEOUT", "0"},
};

// Variables that say how many shards there are.
constexpr const char* kShardVariables[] = {"GRPCXX_SHARDS", "NETWORK_PS_CORE_NUMBER", "NETWORK_WORKER_CORE_NUMBER"};
// TensorFlow computes on all CPUs; one in four is enough to move its tensors.
constexpr size_t kCpusForEachShard = 4;

bool IsSet(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

size_t AllowedCpus() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return 1;
  return CPU_COUNT(&allowed);
}

void Log(void*, int32_t level, const char* target, const char* message) {
  switch (level) {
    case GRPCXX_LOG_ERROR:
      LOG(ERROR) << target << ": " << message;
      break;
    case GRPCXX_LOG_WARNING:
      LOG(WARNING) << target << ": " << message;
      break;
    default:
      VLOG(1) << target << ": " << message;
  }
}

// The gRPC address of the task itself, and the number of tasks of the cluster.
absl::StatusOr<std::string> OwnAddress(const tensorflow::ServerDef& server_def, size_t* num_tasks) {
  std::string address;
  *num_tasks = 0;
  for (const auto& job : server_def.cluster().job()) {
    *num_tasks += job.tasks().size();
    if (job.name() != server_def.job_name()) continue;
    const auto task = job.tasks().find(server_def.task_index());
    if (task != job.tasks().end()) address = task->second;
  }
  if (address.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the cluster has no task ", server_def.task_index(), " of job \"",
                                                   server_def.job_name(), "\"; protocol=\"grpc++\" needs it there"));
  }
  return address;
}

// Whether the system knows IPv6 addresses of a host alone.
bool HasOnlyIpv6(const std::string& host) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return false;
  bool has_only = true;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family != AF_INET6) has_only = false;
  }
  freeaddrinfo(found);
  return has_only;
}

// Where a task listens whose own host is this: the loopback address that it is, else all addresses of its family.
std::string ListenIp(absl::string_view host) {
  if (absl::EqualsIgnoreCase(host, "localhost")) return "127.0.0.1";
  if (absl::ConsumePrefix(&host, "[")) return host == "::1]" ? "::1" : "::";
  const std::string text(host);
  in_addr ip;
  if (inet_pton(AF_INET, text.c_str(), &ip) == 1) return absl::StartsWith(host, "127.") ? text : "0.0.0.0";
  return HasOnlyIpv6(text) ? "::" : "0.0.0.0";
}

// The star port of a task without a map: any that is free, or, if the user has said so, its gRPC port plus an offset.
absl::StatusOr<std::string> StarPort(absl::string_view grpc_address) {
  constexpr char kOffset[] = "GRPCXX_STAR_PORT_OFFSET";
  if (!IsSet(kOffset)) return std::string("0");
  constexpr uint32_t kPortMax = 65535;
  uint32_t offset = 0, grpc_port = 0;
  // The engine has its own words for an offset that cannot be read.
  if (!absl::SimpleAtoi(std::getenv(kOffset), &offset) || offset == 0 || offset >= kPortMax) return std::string("0");
  if (!absl::SimpleAtoi(grpc_address.substr(grpc_address.rfind(':') + 1), &grpc_port) || grpc_port > kPortMax) {
    return absl::InvalidArgumentError(absl::StrCat("the address \"", grpc_address, "\" is not host:port"));
  }
  if (grpc_port + offset > kPortMax) {
    return absl::InvalidArgumentError(absl::StrCat("gRPC port ", grpc_port, " plus ", kOffset, "=", offset,
                                                   " is more than ", kPortMax,
                                                   "; take a lower gRPC port or offset, or write an .endpoint_map"));
  }
  return absl::StrCat(grpc_port + offset);
}

// Engines that are alive, so that their threads end before the process takes TensorFlow apart.
std::mutex& AliveMutex() {
  static std::mutex* const mutex = new std::mutex;
  return *mutex;
}
std::set<Engine*>& Alive() {
  static std::set<Engine*>* const alive = new std::set<Engine*>;
  return *alive;
}
void ShutdownAll() {
  std::vector<Engine*> engines;
  {
    std::lock_guard<std::mutex> lock(AliveMutex());
    engines.assign(Alive().begin(), Alive().end());
    Alive().clear();
  }
  for (Engine* engine : engines) engine->Shutdown();
}

// Python that Ctrl-C ends finalizes, and then ends itself by that signal: what std::atexit holds is not run.
bool ShutdownAtExit() {
  using PyAtExit = int(void (*)());
  auto* const at_exit_of_python = reinterpret_cast<PyAtExit*>(dlsym(RTLD_DEFAULT, "Py_AtExit"));
  if (at_exit_of_python != nullptr) at_exit_of_python(&ShutdownAll);
  return std::atexit(&ShutdownAll) == 0;
}

absl::StatusOr<bool> Boolean(const char* name, bool otherwise) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return otherwise;
  const std::string lower = absl::AsciiStrToLower(value);
  for (absl::string_view on : {"on", "true", "1", "yes", "auto"}) {
    if (lower == on) return true;
  }
  for (absl::string_view off : {"off", "false", "0", "no"}) {
    if (lower == off) return false;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name, "=", value, " is not on, true, 1, yes or auto, nor off, false, 0 or no"));
}

// Digits, or digits with KiB, MiB, GiB or TiB, as the engine reads them.
absl::StatusOr<uint64_t> Bytes(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return otherwise;
  absl::string_view digits = value;
  int shift = 0;
  constexpr absl::string_view kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  for (int i = 0; i < 4; ++i) {
    if (absl::ConsumeSuffix(&digits, kUnits[i])) shift = 10 * (i + 1);
  }
  uint64_t number = 0;
  if (!absl::SimpleAtoi(digits, &number) || number > (uint64_t{1} << 44) >> shift) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "=", value, " is not a number of bytes up to 16TiB, such as 1073741824 or 1GiB"));
  }
  return number << shift;
}

}  // namespace

std::string Announcement::Word() const { return absl::StrCat(kWord, kVersion, ":", port, ":", features); }

bool Announcement::Find(absl::string_view description, Announcement* announcement) {
  for (absl::string_view word : absl::StrSplit(description, ' ')) {
    if (!absl::ConsumePrefix(&word, kWord)) continue;
    const std::vector<absl::string_view> parts = absl::StrSplit(word, ':');
    uint32_t version = 0, port = 0, features = 0;
    if (parts.size() < 3 || !absl::SimpleAtoi(parts[0], &version) || version != kVersion ||
        !absl::SimpleAtoi(parts[1], &port) || port == 0 || port > 65535 || !absl::SimpleAtoi(parts[2], &features)) {
      continue;
    }
    announcement->port = static_cast<uint16_t>(port);
    announcement->features = features;
    return true;
  }
  return false;
}

absl::StatusOr<std::shared_ptr<Engine>> Engine::Start(const tensorflow::ServerDef& server_def) {
  if (grpcxx_abi_version() != GRPCXX_ABI_VERSION) {
    return absl::FailedPreconditionError(absl::StrCat("the grpcxx engine has ABI ", grpcxx_abi_version(),
                                                      ", this plugin needs ", GRPCXX_ABI_VERSION,
                                                      "; install grpcxx again"));
  }
  grpcxx_log_set(GRPCXX_LOG_INFO, &Log, nullptr);
  std::shared_ptr<Engine> engine(new Engine);
  const absl::StatusOr<bool> fuses = Boolean("GRPCXX_TENSOR_FUSE", true);
  if (!fuses.ok()) return fuses.status();
  engine->fuses_ = *fuses;
  const absl::StatusOr<bool> fuses_graphs = Boolean("GRPCXX_GRAPH_FUSION", true);
  if (!fuses_graphs.ok()) return fuses_graphs.status();
  const absl::StatusOr<uint64_t> pool_bytes = Bytes("GRPCXX_TENSOR_POOL_BYTES", uint64_t{1} << 30);
  if (!pool_bytes.ok()) return pool_bytes.status();
  Pool::Instance().SetRetainedBytesMax(*pool_bytes);
  if (absl::Status read = engine->ReadMap(); !read.ok()) return read;

  size_t num_tasks = 0;
  const absl::StatusOr<std::string> own = OwnAddress(server_def, &num_tasks);
  if (!own.ok()) return own.status();
  std::string host = own->substr(0, own->rfind(':'));
  std::string port = "0";
  if (engine->map_ != nullptr) {
    // As in DeepRec the map names every task; entries that are wrong matter to those who use them.
    for (const auto& job : server_def.cluster().job()) {
      for (const auto& [task, address] : job.tasks()) {
        const absl::StatusOr<std::string> star = engine->StarAddress(address, 0);
        if (absl::IsNotFound(star.status())) return star.status();
      }
    }
    const absl::StatusOr<std::string> star = engine->StarAddress(*own, 0);
    if (!star.ok()) return star.status();
    host = star->substr(0, star->rfind(':'));
    port = star->substr(star->rfind(':') + 1);
  } else {
    const absl::StatusOr<std::string> ruled = StarPort(*own);
    if (!ruled.ok()) return ruled.status();
    port = *ruled;
  }
  const char* bind_address = std::getenv("GRPCXX_BIND_ADDRESS");
  const bool is_bound = bind_address != nullptr && *bind_address != '\0';
  const std::string ip = is_bound ? bind_address : ListenIp(host);
  const std::string listen = absl::StrCat(absl::StrContains(ip, ':') ? absl::StrCat("[", ip, "]") : ip, ":", port);

  grpcxx_options* options = grpcxx_options_new();
  absl::Status started = engine->Configure(server_def, num_tasks, listen, options);
  if (started.ok()) started = TakeFromEngine(grpcxx_engine_start(options, &engine->engine_));
  grpcxx_options_free(options);
  if (!started.ok()) {
    return absl::Status(started.code(), absl::StrCat("grpc++ cannot start: ", started.message()));
  }
  engine->announcement_.port = grpcxx_engine_star_port(engine->engine_);
  engine->announcement_.features = Announcement::kFusePartly | Announcement::kRecvBuf | Announcement::kSteps;
  if (*fuses_graphs) {
    engine->announcement_.features |= Announcement::kPacks;
    TurnGraphFusionOn();
  }
  LOG(INFO) << "grpc++ on star port " << engine->announcement_.port << ", "
            << (engine->map_ != nullptr ? absl::StrCat("peers by ", grpcxx_endpoint_map_path(engine->map_))
                                        : std::string("peers by discovery"))
            << ": " << grpcxx_engine_start_report(engine->engine_);
  // An address that no task has: whether TLS is wanted at all.
  if (!engine->CheckPlainCall("0.0.0.0:0").ok()) {
    LOG(WARNING) << "grpc++: tensors and steps travel over TLS; sessions, graphs with their constants, and eager "
                    "execution stay on TensorFlow's gRPC, which has no TLS. Let only tasks of the cluster reach "
                 << *own << " (docs/tls.md, \"TensorFlow\")";
  }
  if (const char* metrics = grpcxx_engine_metrics_address(engine->engine_)) {
    LOG(INFO) << "grpc++ serves metrics on http://" << metrics << "/metrics";
  }
  {
    std::lock_guard<std::mutex> lock(AliveMutex());
    static const bool kAtExit = ShutdownAtExit();
    (void)kAtExit;
    Alive().insert(engine.get());
  }
  return engine;
}

Engine::~Engine() {
  {
    std::lock_guard<std::mutex> lock(AliveMutex());
    Alive().erase(this);
  }
  grpcxx_engine_free(engine_);
  grpcxx_endpoint_map_free(map_);
}

absl::StatusOr<std::string> Engine::StarAddress(const std::string& grpc_address, uint16_t port) const {
  if (map_ != nullptr) {
    const char* star = nullptr;
    absl::Status found = TakeFromEngine(
        grpcxx_endpoint_map_star_address(map_, grpc_address.data(), grpc_address.size(), &star));
    if (!found.ok()) return found;
    return std::string(star);
  }
  const size_t colon = grpc_address.rfind(':');
  if (colon == std::string::npos || colon == 0 || grpc_address.find("//") != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("the address \"", grpc_address, "\" is not host:port, so that its host is not known"));
  }
  return absl::StrCat(grpc_address.substr(0, colon), ":", port);
}

absl::Status Engine::CheckPlainCall(const std::string& grpc_address) const {
  return TakeFromEngine(grpcxx_engine_check_plain_call(engine_, grpc_address.data(), grpc_address.size()));
}

absl::Status Engine::CheckPlainAnswer(const std::string& device) const {
  // A task that the cluster has not is known by its name alone, which has no address.
  std::string address = device;
  tensorflow::DeviceNameUtils::ParsedName name;
  if (tensorflow::DeviceNameUtils::ParseFullName(device, &name)) {
    const auto found = grpc_addresses_.find({name.job, name.task});
    if (found != grpc_addresses_.end()) address = found->second;
  }
  return TakeFromEngine(grpcxx_engine_check_plain_answer(engine_, address.data(), address.size()));
}

void Engine::Shutdown() {
  SetService(nullptr);
  if (engine_ != nullptr) grpcxx_status_free(grpcxx_engine_shutdown(engine_, 0));
}

absl::Status Engine::ReadMap() {
  absl::Status read = TakeFromEngine(grpcxx_endpoint_map_new(nullptr, 0, &map_));
  // Without a map peers are found by asking them.
  return absl::IsNotFound(read) ? absl::OkStatus() : read;
}

absl::Status Engine::Configure(const tensorflow::ServerDef& server_def, size_t num_tasks, const std::string& listen,
                               grpcxx_options* options) {
  const std::string& job = server_def.job_name();
  absl::Status status =
      TakeFromEngine(grpcxx_options_set_task(options, job.data(), job.size(), server_def.task_index()));
  if (status.ok()) status = TakeFromEngine(grpcxx_options_set_listen(options, listen.data(), listen.size()));
  const auto set = [options, &status](absl::string_view name, absl::string_view value) {
    if (!status.ok()) return;
    status =
        TakeFromEngine(grpcxx_options_set_variable(options, name.data(), name.size(), value.data(), value.size()));
  };
  for (const Setting& setting : kSettings) {
    if (!IsSet(setting.name)) set(setting.name, setting.value);
  }
  if (std::none_of(std::begin(kShardVariables), std::end(kShardVariables), &IsSet)) {
    const size_t shards = std::min(num_tasks, std::max<size_t>(1, AllowedCpus() / kCpusForEachShard));
    set("GRPCXX_SHARDS", absl::StrCat(std::min<size_t>(shards, 16)));
  }
  if (status.ok()) status = TakeFromEngine(grpcxx_options_set_num_tasks(options, num_tasks));
  // An address that is none here, such as "dns:///ps", names no host whose peers could be known by it.
  const auto add_task = [options](const std::string& address) {
    grpcxx_status_free(grpcxx_options_add_task(options, address.data(), address.size()));
  };
  for (const auto& member : server_def.cluster().job()) {
    for (const auto& [task, address] : member.tasks()) {
      add_task(address);
      grpc_addresses_[{member.name(), task}] = address;
      if (map_ == nullptr) continue;
      const absl::StatusOr<std::string> star = StarAddress(address, 0);
      if (star.ok()) add_task(*star);
    }
  }
  if (status.ok()) status = TakeFromEngine(grpcxx_options_set_service(options, &Engine::Serve, this, nullptr));
  if (status.ok()) status = TakeFromEngine(grpcxx_options_set_metrics(options, &TellMetrics, nullptr, nullptr));
  if (status.ok()) status = TakeFromEngine(grpcxx_options_set_awaiting(options, &TellAwaited, nullptr, nullptr));
  return status;
}

int32_t Engine::Serve(void* user, grpcxx_request* request, grpcxx_responder* responder) {
  Service* service = static_cast<Engine*>(user)->service_.load(std::memory_order_acquire);
  if (service == nullptr) {
    AnswerError(responder, absl::UnavailableError("this task has not started yet, or is about to end"));
    return GRPCXX_TAKEN;
  }
  return service->Serve(request, responder) ? GRPCXX_TAKEN : GRPCXX_DECLINED;
}

}  // namespace grpcxx_tensorflow
