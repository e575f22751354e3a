// What TensorFlow opens on import: it lies in site-packages/tensorflow-plugins, and opens the plugin that was built for
// exactly this version of TensorFlow. Knows nothing of TensorFlow but one function of its C interface, so that it works
// with every version. Whatever goes wrong must not break `import tensorflow`.
//
// Where there is no build for this version, a few lines of Python (grpcxx/_missing.py) give those who ask for
// protocol="grpc++" an error that says what to do.

#include <dirent.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace {

constexpr char kPrefix[] = "libgrpcxx_tensorflow_";
constexpr char kSuffix[] = ".so";

std::string OwnFolder() {
  Dl_info info;
  static const int kHere = 0;
  if (dladdr(&kHere, &info) == 0 || info.dli_fname == nullptr) return "";
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

// "2.21.0", or nothing outside of TensorFlow.
std::string TensorFlowVersion() {
  for (const char* library : {"libtensorflow_framework.so.2", "libtensorflow_cc.so.2"}) {
    void* handle = dlopen(library, RTLD_NOLOAD | RTLD_LAZY);
    if (handle == nullptr) continue;
    using Version = const char* (*)();
    const auto version = reinterpret_cast<Version>(dlsym(handle, "TF_Version"));
    const std::string text = version != nullptr ? version() : "";
    dlclose(handle);
    if (!text.empty()) return text;
  }
  return "";
}

// The versions in a folder for which there are builds, separated by commas.
std::string Builds(const std::string& folder) {
  std::vector<std::string> versions;
  if (DIR* directory = opendir(folder.c_str())) {
    while (const dirent* entry = readdir(directory)) {
      const std::string name = entry->d_name;
      const size_t affixes = sizeof(kPrefix) - 1 + sizeof(kSuffix) - 1;
      if (name.size() <= affixes || name.compare(0, sizeof(kPrefix) - 1, kPrefix) != 0) continue;
      versions.push_back(name.substr(sizeof(kPrefix) - 1, name.size() - affixes));
    }
    closedir(directory);
  }
  std::sort(versions.begin(), versions.end());
  std::string joined;
  for (const std::string& version : versions) joined += (joined.empty() ? "" : ", ") + version;
  return joined;
}

// A Python literal.
std::string Quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c == '\n' || c == '\r' ? ' ' : c;
  }
  return quoted + "'";
}

// Lets grpcxx/_missing.py say why grpc++ is not there. Silent where this is not Python.
void Explain(const std::string& script, const std::string& version, const std::string& builds,
             const std::string& reason) {
  const auto ensure = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
  const auto release = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "PyGILState_Release"));
  const auto run =
      reinterpret_cast<int (*)(const char*, void*)>(dlsym(RTLD_DEFAULT, "PyRun_SimpleStringFlags"));
  if (ensure == nullptr || release == nullptr || run == nullptr || access(script.c_str(), R_OK) != 0) return;
  const std::string code =
      "try:\n"
      " import runpy as _grpcxx_runpy\n"
      " _grpcxx_runpy.run_path(" + Quoted(script) + ")['install'](" + Quoted(version) + ", " + Quoted(builds) + ", " +
      Quoted(reason) + ")\n"
      "except Exception:\n"
      " pass\n";
  const int state = ensure();
  run(code.c_str(), nullptr);
  release(state);
}

__attribute__((constructor)) void Load() {
  const std::string version = TensorFlowVersion();
  const std::string own = OwnFolder();
  if (version.empty() || own.empty()) return;
  const std::string package = own + "/../grpcxx";
  std::string reason;
  for (const std::string& folder : {package + "/lib", own}) {
    const std::string path = folder + "/" + kPrefix + version + kSuffix;
    if (access(path.c_str(), R_OK) != 0) continue;
    // Stays open for ever: TensorFlow keeps what the plugin registers.
    if (dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) != nullptr) return;
    reason = dlerror();
  }
  Explain(package + "/_missing.py", version, Builds(package + "/lib"), reason);
}

}  // namespace
