#include "jit/quick_compile.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "core/devices/nvrtc.h"
#include "core/error.h"
#include "core/system/env.h"
#include "core/system/log.h"
#include "core/system/mutex.h"
#include "core/system/parallel.h"

namespace mercer::jit {
namespace {

/// Threads that outlive the call that starts them. Never destroyed: NVRTC takes what it works with down at the end of a
/// process, in handlers that it registers as it compiles, and the last handler registered is the first to run. So the
/// wait for these threads is registered after each compilation that comes before them.
class Background {
 public:
  static Background& shared() {
    static constinit Lazy<Background> background;
    return background.get();
  }

  /// Begins when `start` is ready, or given up. Throws std::system_error where the system has no thread left.
  std::shared_future<CudaBinary> compile(CudaSource source, std::shared_future<void> start) {
    const std::lock_guard lock(mutex_);
    std::erase_if(workers_, [](Worker& worker) {
      const bool is_done = worker.result.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
      if (is_done) worker.thread.join();
      return is_done;
    });
    std::packaged_task<CudaBinary()> task([source = std::move(source), start = std::move(start)] {
      start.wait();
      return cuda_compile(source);
    });
    const std::shared_future<CudaBinary> result = task.get_future().share();
    workers_.push_back({result, std::thread(std::move(task))});
    return result;
  }

  void wait() {
    std::vector<std::shared_future<CudaBinary>> results;
    {
      const std::lock_guard lock(mutex_);
      for (const Worker& worker : workers_) results.push_back(worker.result);
    }
    for (const auto& result : results) result.wait();
  }

  static void wait_at_exit() {
    std::atexit([] { shared().finish(); });
  }

 private:
  struct Worker {
    std::shared_future<CudaBinary> result;
    std::thread thread;
  };

  void finish() {
    std::list<Worker> workers;
    {
      const std::lock_guard lock(mutex_);
      workers.swap(workers_);
    }
    for (Worker& worker : workers) worker.thread.join();
  }

  Mutex mutex_;
  std::list<Worker> workers_;
};

/// Lets the threads of a call begin, on every way out of it.
struct Start {
  std::promise<void> promise;
  std::shared_future<void> future = promise.get_future().share();
  ~Start() {
    Background::wait_at_exit();
    promise.set_value();
  }
};

/// Its functions are compiled on several threads, but for those of products of warpgroups: they all stand in one
/// function, about which NVRTC 13.0 has remarks then that it prints itself.
CudaSource quick(CudaSource source, std::size_t sources) {
  constexpr std::size_t kMostThreads = 8;
  const std::size_t threads = static_cast<std::size_t>(usable_cpus()) / sources;
  source.quickly = true;
  source.options.emplace_back("-DMERCER_QUICK=1");
  if (source.text.find("wgmma.mma_async") == std::string::npos)
    source.options.push_back(fmt::format("--split-compile={}", std::clamp<std::size_t>(threads, 1, kMostThreads)));
  source.name += ", quickly";
  return source;
}

/// Quick kernels in the place of the full ones; without them these serve, or say why not.
std::vector<QuickBinary> compile_both(const std::vector<CudaSource>& sources) {
  std::vector<CudaSource> quick_ones;
  for (const CudaSource& source : sources) quick_ones.push_back(quick(source, sources.size()));
  std::optional<FirstBinaries> made;
  if (compiles_first()) made = compile_first(quick_ones, sources);
  std::vector<QuickBinary> binaries;
  if (!made) {
    for (CudaBinary& binary : CudaCompiler::shared().compile_all(sources)) binaries.push_back({std::move(binary), {}});
    return binaries;
  }
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (made->first.empty()) {
      binaries.push_back({made->full[i].get(), {}});
    } else {
      binaries.push_back({std::move(made->first[i]), made->full[i]});
      binaries.back().binary.name = sources[i].name;
    }
  }
  return binaries;
}

}  // namespace

bool compiles_first() {
  if (env_text("MERCER_QUICK_COMPILE") && !env_flag("MERCER_QUICK_COMPILE")) return false;
  const Nvrtc* compiler = nvrtc();
  return compiler != nullptr && std::pair(compiler->major(), compiler->minor()) >= std::pair(12, 9) &&
         usable_cpus() > 1;
}

// The full ones begin after the first ones, for at the same time both take longer. Their threads are asked for
// before: NVRTC hangs where it gets none.
std::optional<FirstBinaries> compile_first(const std::vector<CudaSource>& first, const std::vector<CudaSource>& full) {
  FirstBinaries made;
  try {
    const Start start;
    for (const CudaSource& source : full) made.full.push_back(Background::shared().compile(source, start.future));
    try {
      made.first = CudaCompiler::shared().compile_all_now(first);
    } catch (const Error& error) {
      log(LogLevel::info, "cuda: {}", error.what());
    }
  } catch (const std::system_error& error) {
    log_once(LogLevel::warning, "cuda: no thread could be started to compile: {}", error.what());
    return std::nullopt;
  }
  return made;
}

std::vector<QuickBinary> compile_quickly(const std::vector<CudaSource>& sources, FoundBinaries found) {
  std::vector<QuickBinary> binaries(found.binaries.size());
  std::vector<std::size_t> missing;
  std::vector<CudaSource> texts;
  for (std::size_t i = 0; i < binaries.size(); ++i) {
    if (found.binaries[i]) {
      binaries[i].binary = std::move(*found.binaries[i]);
      continue;
    }
    missing.push_back(i);
    texts.push_back(sources[found.of.first[i]]);
  }
  std::vector<QuickBinary> made;
  if (!texts.empty()) made = compile_both(texts);
  for (std::size_t j = 0; j < missing.size(); ++j) binaries[missing[j]] = std::move(made[j]);
  std::vector<QuickBinary> all;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    all.push_back(binaries[found.of.place_of[i]]);
    all.back().binary.name = sources[i].name;
  }
  return all;
}

std::vector<QuickBinary> compile_quickly(const std::vector<CudaSource>& sources) {
  return compile_quickly(sources, CudaCompiler::shared().find_all(sources));
}

void finish_compiling() { Background::shared().wait(); }

}  // namespace mercer::jit
