#include "core/devices/nvrtc.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "core/devices/cuda_driver.h"
#include "core/devices/library.h"
#include "core/error.h"
#include "core/system/env.h"
#include "core/system/log.h"
#include "core/system/mutex.h"

namespace mercer {

using NvrtcProgram = struct NvrtcProgramHandle*;

struct Nvrtc::Functions {
  Library library;
  int (*version)(int* major, int* minor);
  int (*architecture_count)(int* count);
  int (*architectures)(int* list);
  const char* (*error_string)(int result);
  int (*create)(NvrtcProgram* program, const char* text, const char* name, int headers, const char* const* texts,
                const char* const* names);
  int (*destroy)(NvrtcProgram* program);
  int (*compile)(NvrtcProgram program, int count, const char* const* options);
  int (*log_size)(NvrtcProgram program, std::size_t* size);
  int (*log)(NvrtcProgram program, char* text);
  int (*cubin_size)(NvrtcProgram program, std::size_t* size);
  int (*cubin)(NvrtcProgram program, char* bytes);
  int (*ptx_size)(NvrtcProgram program, std::size_t* size);
  int (*ptx)(NvrtcProgram program, char* text);
};

namespace {

namespace fs = std::filesystem;
using Functions = Nvrtc::Functions;

constexpr int kOldestMajor = 12, kNewestMajor = 13;
const std::vector<std::string> kSonames = {"libnvrtc.so.13", "libnvrtc.so.12"};
const std::vector<std::string> kNeeded = {"nvrtcVersion", "nvrtcGetSupportedArchs", "nvrtcCompileProgram",
                                          "nvrtcGetCUBIN"};

Functions functions_of(Library library) {
  Functions f{};
  const auto take = [&](auto*& slot, const char* symbol) {
    slot = reinterpret_cast<std::remove_reference_t<decltype(slot)>>(library.get(symbol));
  };
  take(f.version, "nvrtcVersion");
  take(f.architecture_count, "nvrtcGetNumSupportedArchs");
  take(f.architectures, "nvrtcGetSupportedArchs");
  take(f.error_string, "nvrtcGetErrorString");
  take(f.create, "nvrtcCreateProgram");
  take(f.destroy, "nvrtcDestroyProgram");
  take(f.compile, "nvrtcCompileProgram");
  take(f.log_size, "nvrtcGetProgramLogSize");
  take(f.log, "nvrtcGetProgramLog");
  take(f.cubin_size, "nvrtcGetCUBINSize");
  take(f.cubin, "nvrtcGetCUBIN");
  take(f.ptx_size, "nvrtcGetPTXSize");
  take(f.ptx, "nvrtcGetPTX");
  f.library = std::move(library);
  return f;
}

class Program {
 public:
  explicit Program(const Functions& f) : f_(f) {}
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (handle_ != nullptr) f_.destroy(&handle_);
  }

  int create(const std::string& name, const std::string& text) {
    return f_.create(&handle_, text.c_str(), name.c_str(), 0, nullptr, nullptr);
  }

  int compile(const std::vector<std::string>& options) {
    std::vector<const char*> pointers;
    for (const std::string& option : options) pointers.push_back(option.c_str());
    return f_.compile(handle_, static_cast<int>(pointers.size()), pointers.data());
  }

  std::string log() const {
    std::string text = fetch(f_.log_size, f_.log);
    while (!text.empty() && (text.back() == '\0' || text.back() == '\n' || text.back() == ' ')) text.pop_back();
    return text;
  }

  /// PTX where the options name a virtual architecture.
  std::string code() const {
    std::string cubin = fetch(f_.cubin_size, f_.cubin);
    return cubin.empty() ? fetch(f_.ptx_size, f_.ptx) : cubin;
  }

 private:
  std::string fetch(int (*size_of)(NvrtcProgram, std::size_t*), int (*get)(NvrtcProgram, char*)) const {
    std::size_t size = 0;
    if (handle_ == nullptr || size_of(handle_, &size) != 0 || size == 0) return {};
    std::string bytes(size, '\0');
    return get(handle_, bytes.data()) == 0 ? bytes : std::string();
  }

  const Functions& f_;
  NvrtcProgram handle_ = nullptr;
};

/// 12 for libnvrtc.so.12.4.127; 0 when the name does not say.
int major_in(const std::string& name) {
  const auto at = name.find(".so.");
  int major = 0;
  if (at != std::string::npos) std::from_chars(name.data() + at + 4, name.data() + name.size(), major);
  return major;
}

/// libnvrtc.so.13, libnvrtc-1a2b3c4d.so.12 (wheels of old); not its libraries of built-ins.
bool is_nvrtc(const std::string& name) {
  return name.starts_with("libnvrtc") && name.find(".so") != std::string::npos &&
         name.find("builtins") == std::string::npos && name.find(".alt.") == std::string::npos;
}

struct Candidate {
  fs::path path;
  int major;
};

std::vector<Candidate> in_folder(const fs::path& folder) {
  std::vector<Candidate> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (!is_nvrtc(at->path().filename().string())) continue;
    std::error_code broken;
    const fs::path file = fs::canonical(at->path(), broken);
    const int major = broken ? 0 : major_in(file.filename().string());
    if (major >= kOldestMajor && major <= kNewestMajor) found.push_back({file, major});
  }
  std::sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    return a.major != b.major ? a.major > b.major : a.path < b.path;
  });
  return found;
}

void add_paths_of_variable(const char* variable, const char* below, std::vector<fs::path>& folders) {
  const char* value = std::getenv(variable);
  std::string_view rest = value == nullptr ? "" : value;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    if (!item.empty()) folders.push_back(fs::path(item) / below);
  }
}

std::vector<fs::path> toolkit_folders() {
  std::vector<fs::path> folders;
  add_paths_of_variable("LD_LIBRARY_PATH", "", folders);
  add_paths_of_variable("CUDA_HOME", "lib64", folders);
  add_paths_of_variable("CUDA_PATH", "lib64", folders);
  folders.push_back("/usr/local/cuda/lib64");
  std::vector<fs::path> versions;
  std::error_code error;
  for (fs::directory_iterator at("/usr/local", error), end; !error && at != end; at.increment(error))
    if (at->path().filename().string().starts_with("cuda-")) versions.push_back(at->path() / "lib64");
  std::sort(versions.rbegin(), versions.rend());
  folders.insert(folders.end(), versions.begin(), versions.end());
  return folders;
}

/// A cubin of a newer major version of CUDA than the driver's does not load.
bool driver_serves(int major) {
  const int driver = cuda_driver_version() / 1000;
  return driver == 0 || major <= driver;
}

/// Candidates that the driver serves come first; the order is kept otherwise.
std::vector<Candidate> candidates(const std::vector<fs::path>& handed_over) {
  std::vector<Candidate> all;
  const Library loaded = Library::already_loaded(kSonames, kNeeded);
  if (loaded) all.push_back({loaded.path(), major_in(loaded.name())});
  for (const auto& folders : {handed_over, toolkit_folders()}) {
    for (const fs::path& folder : folders) {
      const std::vector<Candidate> here = in_folder(folder);
      all.insert(all.end(), here.begin(), here.end());
    }
  }
  std::stable_partition(all.begin(), all.end(), [](const Candidate& c) { return driver_serves(c.major); });
  return all;
}

struct Finder {
  Mutex mutex;
  std::vector<fs::path> folders;
  std::atomic<const Nvrtc*> found{nullptr};
  bool searched = false;
  std::string reason;
};

Finder& finder() {
  static constinit Lazy<Finder> kept;  // the library is never unloaded, so its owner is never destroyed
  return kept.get();
}

std::string places(const std::vector<fs::path>& folders) {
  std::string text;
  for (const fs::path& folder : folders) text += folder.string() + ", ";
  return text;
}

Library load_library(Finder& state) {
  if (const auto named = env_text("MERCER_NVRTC")) {
    Library library({*named}, kNeeded);
    if (!library) state.reason = "MERCER_NVRTC names no NVRTC of CUDA 12 or 13: " + library.why_not();
    return library;
  }
  std::string failures;
  for (const Candidate& candidate : candidates(state.folders)) {
    Library library({candidate.path.string()}, kNeeded);
    if (library) return library;
    failures += library.why_not();
  }
  Library library(kSonames, kNeeded);
  if (!library) {
    state.reason = fmt::format("looked for {} in {}{}and the loader's places. {}", fmt::join(kSonames, " and "),
                               places(state.folders), places(toolkit_folders()), failures);
  }
  return library;
}

void warn_of_driver(const Nvrtc& compiler) {
  if (driver_serves(compiler.major())) return;
  log_once(LogLevel::warning, "NVRTC {} ({}) is of a newer CUDA than the driver serves; pip install {} mends it",
           compiler.version(), compiler.file(), nvrtc_package());
}

/// NVRTC opens its library of built-ins by its plain name. Some of NVIDIA's wheels (13.0) do not tell the loader to
/// look next to them, so it is opened here, after which the name finds it.
void load_builtins(const Nvrtc& compiler) {
  const fs::path file =
      fs::path(compiler.file()).parent_path() / fmt::format("libnvrtc-builtins.so.{}", compiler.version());
  std::error_code error;
  if (!fs::exists(file, error)) return;  // a toolkit that the loader knows
  const Library builtins({file.string()});
  if (!builtins) log_once(LogLevel::warning, "NVRTC's built-ins did not load: {}", builtins.why_not());
}

const Nvrtc* search(Finder& state) {
  state.searched = true;
  state.reason.clear();
  Library library = load_library(state);
  if (!library) {
    while (!state.reason.empty() && (state.reason.back() == '\n' || state.reason.back() == ' '))
      state.reason.pop_back();
    return nullptr;
  }
  const std::string file = library.path().empty() ? library.name() : library.path();
  const auto* functions = new Functions(functions_of(std::move(library)));
  const auto* compiler = new Nvrtc(*functions, file);
  load_builtins(*compiler);
  warn_of_driver(*compiler);
  return compiler;
}

}  // namespace

void add_library_folder(fs::path folder) {
  Finder& state = finder();
  const std::lock_guard lock(state.mutex);
  if (std::find(state.folders.begin(), state.folders.end(), folder) != state.folders.end()) return;
  state.folders.push_back(std::move(folder));
  state.searched = false;
}

std::vector<fs::path> library_folders() {
  Finder& state = finder();
  const std::lock_guard lock(state.mutex);
  std::vector<fs::path> folders = state.folders;
  const std::vector<fs::path> toolkits = toolkit_folders();
  folders.insert(folders.end(), toolkits.begin(), toolkits.end());
  return folders;
}

const Nvrtc* nvrtc_if_loaded() { return finder().found.load(std::memory_order_acquire); }

const Nvrtc* nvrtc() {
  if (const Nvrtc* known = nvrtc_if_loaded()) return known;
  Finder& state = finder();
  const std::lock_guard lock(state.mutex);
  if (!state.searched && state.found == nullptr) state.found = search(state);
  return state.found;
}

std::optional<fs::path> nvrtc_file() {
  if (const Nvrtc* known = nvrtc_if_loaded()) return known->file();
  if (const auto named = env_text("MERCER_NVRTC"))
    return fs::path(*named).has_parent_path() ? std::optional(fs::path(*named)) : std::nullopt;
  Finder& state = finder();
  const std::lock_guard lock(state.mutex);
  const auto all = candidates(state.folders);
  return all.empty() ? std::nullopt : std::optional(all.front().path);
}

std::string nvrtc_why_not() {
  if (nvrtc() != nullptr) return {};
  const std::lock_guard lock(finder().mutex);
  return finder().reason;
}

const char* nvrtc_package() {
  return cuda_driver_version() / 1000 == 12 ? "nvidia-cuda-nvrtc-cu12" : "nvidia-cuda-nvrtc";
}

std::string describe_nvrtc() {
  if (const Nvrtc* compiler = nvrtc()) return fmt::format("NVRTC: {} ({})\n", compiler->version(), compiler->file());
  return fmt::format("NVRTC: none; {} pip install {} brings it.\n", nvrtc_why_not(), nvrtc_package());
}

Nvrtc::Nvrtc(const Functions& functions, std::string file) : functions_(&functions), file_(std::move(file)) {
  functions_->version(&major_, &minor_);
  int count = 0;
  if (functions_->architecture_count(&count) != 0 || count <= 0) return;
  architectures_.resize(static_cast<std::size_t>(count));
  functions_->architectures(architectures_.data());
}

std::string Nvrtc::version() const { return fmt::format("{}.{}", major_, minor_); }

bool Nvrtc::knows(std::string_view architecture) const {
  const auto digits = architecture.find_first_of("0123456789");
  if (digits == std::string_view::npos) return false;
  int number = 0;
  std::from_chars(architecture.data() + digits, architecture.data() + architecture.size(), number);
  return std::find(architectures_.begin(), architectures_.end(), number) != architectures_.end();
}

NvrtcResult Nvrtc::compile(const std::string& name, const std::string& text,
                           const std::vector<std::string>& options) const {
  Program program(*functions_);
  int status = program.create(name, text);
  if (status == 0) status = program.compile(options);
  NvrtcResult result;
  result.log = program.log();
  if (status == 0) result.cubin = program.code();
  result.ok = status == 0 && !result.cubin.empty();
  if (!result.ok && result.log.empty()) result.log = functions_->error_string(status);
  return result;
}

}  // namespace mercer
