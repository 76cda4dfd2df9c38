#include "jit/cuda_compile.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstring>
#include <exception>
#include <iterator>
#include <map>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "codegen/cuda/cuda_program.h"
#include "codegen/cuda/cuda_text.h"
#include "core/devices/nvrtc.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/system/env.h"
#include "core/system/log.h"
#include "core/system/mutex.h"
#include "core/system/parallel.h"
#include "jit/cuda_key.h"

namespace mercer::jit {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kFileName = "kernel.cu";        // what the log calls the text
constexpr const char* kAnyCompiler = "any compiler";  // the store's keys
constexpr const char* kLastCompiler = "nvrtc\nlast";  // the version that compiled last, for a cache without its NVRTC
constexpr std::int64_t kStoreFileCap = std::int64_t{1} << 30;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

/// Readable at its beginning, for `mercer cache list`; the hash stands for everything but the name. Texts, of a hundred
/// thousand characters, are hashed where they lie: a call asks for some ten keys.
std::string key_of(const CudaSource& source, const std::string& compiler) {
  std::string parts = hash128(source.text).to_text();
  for (const std::string& option : source.options)
    fmt::format_to(std::back_inserter(parts), "{}:{}", option.size(), option);
  return fmt::format("cubin\n{}\n{}\n{}", source.architecture, compiler, hash128(parts).to_text());
}

namespace {

/// What a file holds: the kernel's name in a line, for people, and the cubin.
std::string payload_of(const CudaSource& source, const std::string& cubin) {
  std::string name = source.name;
  std::replace(name.begin(), name.end(), '\n', ' ');
  return name + "\n" + cubin;
}

std::optional<std::string> cubin_in(std::optional<std::string> payload) {
  if (payload) payload->erase(0, payload->find('\n') + 1);
  return payload;
}

std::vector<std::string> options_of(const CudaSource& source, const Nvrtc& compiler) {
  std::vector<std::string> options = {"--gpu-architecture=" + source.architecture, "--std=c++17"};
  // Leaves textures and the device's own runtime out of the prologue: 8 ms of 40 for an empty kernel.
  if (std::pair(compiler.major(), compiler.minor()) >= std::pair(12, 9)) options.push_back("-minimal");
  options.insert(options.end(), source.options.begin(), source.options.end());
  if (source.quickly) options.push_back("--Ofast-compile=mid");
  return options;
}

/// NVRTC eliminates no partial redundancies after --Ofast-compile=mid, and does not in all that the process
/// compiles later: the setting is global. Where a thread has set it before, the second setting counts as a mistake of
/// the command line and is passed over, so each thread sets it first, by an empty text (13 ms).
void keep_later_compilations_full(const CudaSource& source, const Nvrtc& compiler) {
  const std::string ptx = "compute_" + source.architecture.substr(source.architecture.find('_') + 1);
  const std::vector<std::string> options = {"--gpu-architecture=" + ptx, "-Xnvvm=-Xopt", "-Xnvvm=-enable-pre=true"};
  const NvrtcResult result = compiler.compile(kFileName, "", options);
  if (!result.ok)
    fail(ErrorKind::unsupported,
         "cuda: quick kernels need an NVRTC that takes options of its optimiser. Received {}: {}", compiler.version(),
         result.log);
}

std::string_view line_of(std::string_view text, int number) {
  for (int line = 1; line < number; ++line) {
    const auto end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  return text.substr(0, text.find('\n'));
}

/// The lines that a log's messages "file(12): error …" are about.
std::string lines_concerned(const std::string& log, const std::string& text) {
  constexpr std::size_t kMost = 20;
  const std::string mark = std::string(kFileName) + "(";
  std::set<int> seen;
  std::string lines;
  for (auto at = log.find(mark); at != std::string::npos && seen.size() < kMost; at = log.find(mark, at)) {
    at += mark.size();
    int number = 0;
    std::from_chars(log.data() + at, log.data() + log.size(), number);
    if (number > 0 && seen.insert(number).second)
      lines += fmt::format("  {}:{}: {}\n", kFileName, number, line_of(text, number));
  }
  return lines;
}

[[noreturn]] void fail_without_nvrtc(const CudaSource& source) {
  fail(
      ErrorKind::unsupported,
      "cuda: NVRTC is needed to compile {} for {}; pip install {} brings it, or set MERCER_NVRTC to its file. Received "
      "none: {}",
      source.name, source.architecture, nvrtc_package(), nvrtc_why_not());
}

void require_architecture(const CudaSource& source, const Nvrtc& compiler) {
  if (compiler.knows(source.architecture)) return;
  fail(ErrorKind::compile,
       "cuda: NVRTC must know the architecture; a newer {} may. Received {}, and NVRTC {} ({}), which knows {}.",
       nvrtc_package(), source.architecture, compiler.version(), compiler.file(),
       fmt::join(compiler.architectures(), ", "));
}

/// The assembler's messages, which are the same wherever a loop was unrolled; it names lines that nobody sees.
std::string assembler_errors(std::string_view log) {
  constexpr std::size_t kMost = 10;
  std::set<std::string_view> seen;
  std::string lines;
  for (auto at = log.find("ptxas"); at != std::string_view::npos; at = log.find("ptxas", at + 1)) {
    const std::string_view line = log.substr(at, log.find('\n', at) - at);
    const auto error = line.find("error");
    if (error == std::string_view::npos || seen.size() == kMost || !seen.insert(line.substr(error)).second) continue;
    lines += fmt::format("  {}\n", line.substr(error));
  }
  return lines;
}

/// What a user's own PTX gets wrong is found by the assembler, when the rest has gone well.
void fail_of_ptx(const CudaSource& source, const Nvrtc& compiler, const std::string& log) {
  const std::string errors = assembler_errors(log);
  std::string texts;
  for (const std::string& text : codegen::ptx_of(source.text)) texts += fmt::format("  ptx \"{}\"\n", text);
  if (errors.empty() || texts.empty()) return;
  fail(ErrorKind::compile, "cuda: {} holds PTX of the formula, which the assembler must take for {}:\n{}Received from "
       "NVRTC {}:\n{}", source.name, source.architecture, texts, compiler.version(), errors);
}

/// Messages of a log, with a blank line after each, that tell of errors; all where none does.
std::string errors_of(std::string_view log) {
  std::string errors;
  for (std::string_view rest = log; !rest.empty();) {
    const auto end = rest.find("\n\n");
    const std::string_view message = rest.substr(0, end);
    if (message.find("error") != std::string_view::npos || message.find("fatal") != std::string_view::npos)
      fmt::format_to(std::back_inserter(errors), "{}\n\n", message);
    rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 2);
  }
  return errors.empty() ? std::string(log) : errors;
}

[[noreturn]] void fail_of_text(const CudaSource& source, const Nvrtc& compiler, const std::string& log) {
  fail_of_ptx(source, compiler, log);
  constexpr std::size_t kMostLog = 8000;
  const std::string errors = errors_of(log);
  fail(ErrorKind::compile, "cuda: {} must compile for {}. Received from NVRTC {}:\n{}\n{}", source.name,
       source.architecture, compiler.version(), errors.substr(0, kMostLog),
       lines_concerned(errors, source.text));
}

Mutex store_mutex;
fs::path& store_of_package() {
  static constinit Lazy<fs::path> folder;
  return folder.get();
}

fs::path store_folder() {
  if (const auto named = env_text("MERCER_STORE")) return *named;
  const std::lock_guard lock(store_mutex);
  return store_of_package();
}

/// Threads of their own: a pool's workers would be kept from computing for seconds. Fewer where the system denies more.
template <class Work>
void run_on_threads(std::size_t count, const Work& work) {
  std::vector<std::thread> threads;
  threads.reserve(count);
  try {
    for (std::size_t t = 1; t < count; ++t) threads.emplace_back(work);
  } catch (const std::system_error& error) {
    log_once(LogLevel::warning, "cuda: only {} of {} threads could be started to compile: {}", threads.size() + 1,
             count, error.what());
  }
  work();
  for (std::thread& thread : threads) thread.join();
}

/// Compiles one of each set of equal sources.
template <class Compile>
std::vector<CudaBinary> compile_each(const std::vector<CudaSource>& sources, const Compile& compile) {
  const DistinctSources of = distinct(sources);
  std::vector<CudaBinary> compiled(of.first.size());
  std::vector<std::exception_ptr> errors(of.first.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < of.first.size(); i = next++) {
      try {
        compiled[i] = compile(sources[of.first[i]]);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  run_on_threads(std::min(of.first.size(), static_cast<std::size_t>(usable_cpus())), work);
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  std::vector<CudaBinary> binaries;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    binaries.push_back(compiled[of.place_of[i]]);
    binaries.back().name = sources[i].name;
  }
  return binaries;
}

/// The number before `unit` in the line, 0 when the line has no such.
int number_before(std::string_view line, std::string_view unit) {
  auto at = line.find(unit);
  if (at == std::string_view::npos) return 0;
  auto start = at;
  while (start > 0 && line[start - 1] >= '0' && line[start - 1] <= '9') --start;
  int number = 0;
  std::from_chars(line.data() + start, line.data() + at, number);
  return number;
}

}  // namespace

DistinctSources distinct(const std::vector<CudaSource>& sources) {
  std::map<std::string, std::size_t> places;
  DistinctSources of;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const auto [known, is_new] = places.try_emplace(key_of(sources[i], kAnyCompiler), of.first.size());
    if (is_new) of.first.push_back(i);
    of.place_of.push_back(known->second);
  }
  return of;
}

bool FoundBinaries::is_complete() const {
  return std::all_of(binaries.begin(), binaries.end(), [](const auto& binary) { return binary.has_value(); });
}

CudaCompiler::CudaCompiler(FileCache cache, fs::path store)
    : cache_(std::move(cache)), store_(FileCache::read_only(std::move(store))) {}

CudaCompiler& CudaCompiler::shared() {
  static constinit Lazy<CudaCompiler> compiler;
  return compiler.get([] { return CudaCompiler(FileCache::from_environment(), store_folder()); });
}

std::string CudaCompiler::compiler_version() {
  const std::lock_guard lock(version_mutex_);
  if (version_.empty()) version_ = find_version();
  return version_;
}

// Loading NVRTC takes 5 to 10 ms, ten times what reading a kernel does, so its version is kept next to the kernels.
std::string CudaCompiler::find_version() {
  if (const Nvrtc* loaded = nvrtc_if_loaded()) return loaded->version();
  std::string key;
  const auto file = nvrtc_file();
  if (struct stat status{}; file && ::stat(file->c_str(), &status) == 0) {
    key = fmt::format("nvrtc\n{}\n{}\n{}.{}", file->string(), status.st_size, status.st_mtim.tv_sec,
                      status.st_mtim.tv_nsec);
    if (auto known = cache_.read(key)) return std::move(*known);
  }
  const Nvrtc* compiler = nvrtc();
  if (compiler == nullptr) return cache_.read(kLastCompiler).value_or("");
  if (!key.empty() && compiler->file() == file->string()) cache_.write(key, compiler->version());
  return compiler->version();
}

std::optional<CudaBinary> CudaCompiler::find(const CudaSource& source) {
  const Clock::time_point start = Clock::now();
  CudaBinary binary{source.name, source.architecture, {}, {}, CudaBinary::Origin::store, 0};
  auto cubin = cubin_in(store_.read(key_of(source, kAnyCompiler)));
  if (!cubin) {
    binary.origin = CudaBinary::Origin::cache;
    cubin = cubin_in(cache_.read(key_of(source, compiler_version())));
  }
  if (!cubin) return std::nullopt;
  binary.cubin = std::move(*cubin);
  binary.seconds = seconds_since(start);
  return binary;
}

FoundBinaries CudaCompiler::find_all(const std::vector<CudaSource>& sources) {
  FoundBinaries found{distinct(sources), {}};
  for (const std::size_t i : found.of.first) found.binaries.push_back(find(sources[i]));
  return found;
}

CudaBinary CudaCompiler::compile_now(const CudaSource& source) const {
  const Clock::time_point start = Clock::now();
  const Nvrtc* compiler = nvrtc();
  if (compiler == nullptr) fail_without_nvrtc(source);
  require_architecture(source, *compiler);
  if (source.quickly) keep_later_compilations_full(source, *compiler);
  NvrtcResult result = compiler->compile(kFileName, source.text, options_of(source, *compiler));
  if (!result.ok) fail_of_text(source, *compiler, result.log);
  const double seconds = seconds_since(start);
  log(LogLevel::info, "cuda: compiled {} for {} in {:.0f} ms", source.name, source.architecture, seconds * 1e3);
  return {source.name, source.architecture, std::move(result.cubin), std::move(result.log),
          CudaBinary::Origin::compiled, seconds, source.quickly};
}

std::vector<CudaBinary> CudaCompiler::compile_all_now(const std::vector<CudaSource>& sources) const {
  return compile_each(sources, [this](const CudaSource& source) { return compile_now(source); });
}

CudaBinary CudaCompiler::compile(const CudaSource& source) {
  if (auto found = find(source)) return std::move(*found);
  CudaBinary binary = compile_now(source);
  const std::string version = nvrtc()->version();
  cache_.write(key_of(source, version), payload_of(source, binary.cubin));
  if (cache_.read(kLastCompiler) != version) cache_.write(kLastCompiler, version);
  return binary;
}

std::vector<CudaBinary> CudaCompiler::compile_all(const std::vector<CudaSource>& sources) {
  return compile_each(sources, [this](const CudaSource& source) { return compile(source); });
}

void set_cuda_store(fs::path folder) {
  const std::lock_guard lock(store_mutex);
  store_of_package() = std::move(folder);
}

void add_to_cuda_store(const fs::path& folder, const CudaSource& source, const CudaBinary& binary) {
  FileCache store(folder, kStoreFileCap);
  const std::string key = key_of(source, kAnyCompiler);
  if (!store.write(key, payload_of(source, binary.cubin)))
    fail(ErrorKind::compile, "cuda store: the folder must be one that can be written. Received {}.", folder.string());
  ::chmod(folder.c_str(), 0755);  // shipped to be read by everybody
  ::chmod(store.path_of(key).c_str(), 0644);
}

std::vector<PtxasReport> ptxas_reports(const std::string& log) {
  constexpr std::string_view kEntry = "Compiling entry function '";
  std::vector<PtxasReport> reports;
  for (std::string_view rest = log; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (const auto at = line.find(kEntry); at != std::string_view::npos) {
      const std::string_view name = line.substr(at + kEntry.size());
      reports.push_back({std::string(name.substr(0, name.find('\'')))});
    }
    if (reports.empty()) continue;
    PtxasReport& report = reports.back();
    if (line.find("spill stores") != std::string_view::npos) {
      report.stack = number_before(line, " bytes stack frame");
      report.spill_stores = number_before(line, " bytes spill stores");
      report.spill_loads = number_before(line, " bytes spill loads");
    }
    if (line.find(" registers") != std::string_view::npos) {
      report.registers = number_before(line, " registers");
      report.shared = number_before(line, " bytes smem");
    }
  }
  return reports;
}

}  // namespace mercer::jit
