// CUDA C++ text → cubin: from the store of shipped kernels, else the user's cache, else NVRTC.
//
//   store = read-only files that came with Mercer; keyed by text, options and architecture, whatever made them
//   cache = core/system/file_cache; keyed by the compiler's version too
#pragma once

#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/system/file_cache.h"
#include "core/system/mutex.h"

namespace mercer::jit {

struct CudaSource {
  std::string name;  ///< for logs, dumps and the list of the cache: "tile sum(abs(x-z)) float32"; equal texts of
                     ///< other names are the same kernel
  std::string text;  ///< CUDA C++; #include "prelude.cuh" finds the files of src/kernels/cuda/
  std::string architecture;          ///< "sm_90a": CudaDevice::architecture()
  std::vector<std::string> options;  ///< beyond the architecture and C++17: "-DTILE_M=128", "--ptxas-options=-v"
  bool quickly = false;              ///< by --Ofast-compile=mid (quick_compile.h): for compile_now and compile_all_now
};

/// The first one of each set of equal sources, and for every source which of these it is.
struct DistinctSources {
  std::vector<std::size_t> first, place_of;
};
DistinctSources distinct(const std::vector<CudaSource>& sources);

struct CudaBinary {
  enum class Origin { store, cache, compiled };
  std::string name, architecture;
  std::string cubin;
  std::string log;  ///< the compiler's; empty unless it was compiled just now
  Origin origin = Origin::compiled;
  double seconds = 0;  ///< that getting it took
  bool is_quick = false;  ///< of a source that was compiled quickly
};

/// One binary for each set of equal sources, where it is there.
struct FoundBinaries {
  DistinctSources of;
  std::vector<std::optional<CudaBinary>> binaries;
  bool is_complete() const;
};

/// What a kernel takes, as --ptxas-options=-v prints it, one entry a kernel of the log.
struct PtxasReport {
  std::string kernel;
  int registers = 0, spill_stores = 0, spill_loads = 0, stack = 0, shared = 0;  // bytes but the first
};
std::vector<PtxasReport> ptxas_reports(const std::string& log);

class CudaCompiler {
 public:
  /// An empty store folder is no store.
  CudaCompiler(FileCache cache, std::filesystem::path store);
  /// The cache and the store of the environment (MERCER_CACHE_DIR, MERCER_STORE), made at the first use.
  static CudaCompiler& shared();

  /// Throws compile when the text is wrong (with the log and the lines that it names) or NVRTC does not know the
  /// architecture, unsupported when it must be compiled and there is no NVRTC. Safe from many threads.
  CudaBinary compile(const CudaSource& source);
  /// Each of them, equal ones once, on several threads. Throws the first error when all are done.
  std::vector<CudaBinary> compile_all(const std::vector<CudaSource>& sources);
  /// The binary from store or cache, if it is there. Takes less than a millisecond.
  std::optional<CudaBinary> find(const CudaSource& source);
  FoundBinaries find_all(const std::vector<CudaSource>& sources);
  /// Compiles by NVRTC, past store and cache.
  CudaBinary compile_now(const CudaSource& source) const;
  /// As `compile_now` for each source, equal ones once, on several threads.
  std::vector<CudaBinary> compile_all_now(const std::vector<CudaSource>& sources) const;

 private:
  std::string compiler_version();
  std::string find_version();

  FileCache cache_, store_;
  Mutex version_mutex_;
  std::string version_;
};

inline CudaBinary cuda_compile(const CudaSource& source) { return CudaCompiler::shared().compile(source); }
inline std::vector<CudaBinary> compile_all(const std::vector<CudaSource>& sources) {
  return CudaCompiler::shared().compile_all(sources);
}

/// The folder of shipped kernels, which the package names before the first compilation; MERCER_STORE wins over it.
void set_cuda_store(std::filesystem::path folder);
/// Adds a kernel to a folder that will be shipped.
void add_to_cuda_store(const std::filesystem::path& folder, const CudaSource& source, const CudaBinary& binary);

}  // namespace mercer::jit
