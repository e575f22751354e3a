// Makes TensorFlow know the protocol "grpc++": registers the factory of our server when the plugin is opened, and what
// fuses graphs.

#include <dlfcn.h>

#include <memory>
#include <set>
#include <string>

#include "collective_ops.h"
#include "graph_fusion.h"
#include "pack_ops.h"
#include "server.h"
#include "tensorflow/core/distributed_runtime/server_lib.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/public/version.h"
#include "tensorflow/c/c_api.h"

namespace grpcxx_tensorflow {
namespace {

class Factory : public tensorflow::ServerFactory {
 public:
  bool AcceptsOptions(const tensorflow::ServerDef& server_def) override {
    // DeepRec's names for servers of star, as grpcxx-server knows them; and the only name but grpc that Estimator lets
    // through, for which stock TensorFlow has no server.
    for (const char* name : {kProtocol, "star_server", "star_server_lite", "star_server_v2", "grpc+verbs"}) {
      if (server_def.protocol() == name) return true;
    }
    return false;
  }

  absl::Status NewServer(const tensorflow::ServerDef& server_def, const Options& options,
                         std::unique_ptr<tensorflow::ServerInterface>* out_server) override {
    return Server::Create(server_def, options.local_device_mgr, out_server);
  }
};

using Register = void (*)(const std::string&, tensorflow::ServerFactory*);

// TensorFlow 2.15 to 2.18 has a registry in each of its libraries, and Python may ask any of them.
std::set<Register> Registries() {
  constexpr const char* kLibraries[] = {
      "libtensorflow_cc.so.2",
      "libtensorflow_framework.so.2",
      "_pywrap_tensorflow_internal.so",
      "_pywrap_tensorflow_common.so",
      "lib_pywrap_tensorflow_common.so",
  };
  constexpr const char* kRegisterSymbol =
      "_ZN10tensorflow13ServerFactory8RegisterERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEPS0_";
  std::set<Register> registries = {&tensorflow::ServerFactory::Register};
  for (const char* library : kLibraries) {
    void* handle = dlopen(library, RTLD_NOLOAD | RTLD_LAZY);
    if (handle == nullptr) continue;
    if (void* symbol = dlsym(handle, kRegisterSymbol)) {
      registries.insert(reinterpret_cast<Register>(symbol));
    }
    dlclose(handle);
  }
  return registries;
}

bool RegisterProtocol() {
  // Neighbouring versions load each other's builds, and crash at the first call.
  if (std::string(TF_Version()) != GRPCXX_TENSORFLOW_VERSION) {
    LOG(ERROR) << "grpcxx: this plugin was built for TensorFlow " << GRPCXX_TENSORFLOW_VERSION
               << " and cannot work with " << TF_Version()
               << "; protocol=\"grpc++\" is not available. Install grpcxx again.";
    return false;
  }
  for (Register register_in : Registries()) register_in("GRPCXX_SERVER", new Factory());
  RegisterPackOps();
  RegisterCollectiveOps();
  RegisterGraphFusion();
  return true;
}

const bool kRegistered = RegisterProtocol();

}  // namespace
}  // namespace grpcxx_tensorflow
