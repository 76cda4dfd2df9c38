// Reads MERCER_* variables. A name that is not in the table is a programming error and is refused.
#include "core/system/env.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>

#include "core/error.h"
#include "core/system/mutex.h"

namespace mercer {

const std::vector<EnvRow>& env_table() {
  static constinit Lazy<std::vector<EnvRow>> table;
  return table.get([] {
    return std::vector<EnvRow>{
        {"MERCER_THREADS", "the cpus this process may use, at most OMP_NUM_THREADS", "Threads of the default context."},
        {"MERCER_TARGET", "auto", "Target of the default context: auto, x86_avx512, x86_avx2 or interpreter."},
        {"MERCER_WAY", "", "Ways that calls are held to, for comparisons: materialised,direct, say."},
        {"MERCER_AMX", "auto", "off: tiles of AMX are not used, and the system is not asked for them."},
        {"MERCER_NO_EXEC", "0", "1 behaves as if executable memory were denied: the interpreter serves."},
        {"MERCER_DUMP", "", "Stages to print to stderr as they are made, of ir,plan,program,source."},
        {"MERCER_LOG", "warning",
         "Least severe message: off, error, warning, info or debug; to handlers of Python's logger mercer, or stderr."},
        {"MERCER_CACHE_DIR", "$XDG_CACHE_HOME/mercer or ~/.cache/mercer",
         "Where compiled kernels are kept; off disables."},
        {"MERCER_CACHE_SIZE", "256", "Size cap of that directory in MiB; the oldest files go first."},
        {"MERCER_NVRTC", "the first that is found",
         "NVRTC, which compiles for NVIDIA GPUs, to load: a path or a soname."},
        {"MERCER_LAPACK", "the first that is found",
         "LAPACK, for linear algebra on the CPU, to load: a path or a soname."},
        {"MERCER_CUSOLVER", "the first that is found",
         "cuSOLVER, for linear algebra on NVIDIA GPUs, to load: a path, with cuBLAS next to it."},
        {"MERCER_SCALAPACK", "the first that is found", "ScaLAPACK, for matrices on many ranks, to load: a path."},
        {"MERCER_ELPA", "the first that is found",
         "ELPA, for eigenvectors of such matrices, to load: a path; off leaves it out."},
        {"MERCER_CUSOLVERMP", "the first that is found",
         "cuSOLVERMp, for matrices on several NVIDIA GPUs, to load: a path."},
        {"MERCER_NCCL", "the first that is found", "NCCL, below cuSOLVERMp, to load where none is: a path."},
        {"MERCER_STORE", "the package's own", "Folder of GPU kernels compiled beforehand; read only."},
        {"MERCER_QUICK_COMPILE", "1", "0 compiles for GPUs with full care at the first call, not at the second."},
        {"MERCER_POISON", "0",
         "1 fills scratch memory of the CPU and new arrays with NaN before they are used, for tests. Read once."},
    };
  });
}

std::optional<std::string> env_text(std::string_view name) {
  const auto& table = env_table();
  const auto row = std::find_if(table.begin(), table.end(), [&](const EnvRow& r) { return name == r.name; });
  require(row != table.end(), "env: the variable must be in the table of core/system/env.cpp. Received {}.", name);
  const char* value = std::getenv(row->name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::optional<std::int64_t> env_integer(std::string_view name, std::int64_t low, std::int64_t high) {
  const auto text = env_text(name);
  if (!text) return std::nullopt;
  std::int64_t value = 0;
  const char* end = text->data() + text->size();
  const auto [stop, status] = std::from_chars(text->data(), end, value);
  require(status == std::errc() && stop == end && value >= low && value <= high,
          "{}: must be a whole number from {} to {}. Received {}.", name, low, high, *text);
  return value;
}

bool env_flag(std::string_view name) {
  auto text = env_text(name);
  if (!text) return false;
  std::transform(text->begin(), text->end(), text->begin(), [](unsigned char c) { return std::tolower(c); });
  const auto is_one_of = [&](auto... words) { return ((*text == words) || ...); };
  if (is_one_of("1", "on", "true", "yes")) return true;
  require(is_one_of("0", "off", "false", "no"), "{}: must be 1 or 0. Received {}.", name, *text);
  return false;
}

}  // namespace mercer
