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

#include "core/env.h"
#include "core/error.h"
#include "core/log.h"
#include "core/nvrtc.h"
#include "core/parallel.h"

namespace mercer::jit {
namespace {

/// Threads that outlive the call that starts them. Never destroyed: NVRTC takes what it works with down at the end of a
/// process, in handlers that it registers as it compiles, and the last handler registered is the first to run. So the
/// wait for these threads is registered behind each compilation that comes before them.
class Background {
 public:
  static Background& shared() {
    static auto& background = *new Background;
    return background;
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

  std::mutex mutex_;
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

bool is_wanted() {
  if (env_text("MERCER_QUICK_COMPILE") && !env_flag("MERCER_QUICK_COMPILE")) return false;
  const Nvrtc* compiler = nvrtc();
  return compiler != nullptr && std::pair(compiler->major(), compiler->minor()) >= std::pair(12, 9) &&
         default_thread_count() > 1;
}

/// Its functions are compiled on several threads, but for those of products of warpgroups: they all stand in one
/// function, about which NVRTC 13.0 has remarks then that it prints itself.
CudaSource quick(CudaSource source, std::size_t sources) {
  constexpr std::size_t kMostThreads = 8;
  const std::size_t threads = static_cast<std::size_t>(default_thread_count()) / sources;
  source.quickly = true;
  source.options.emplace_back("-DMERCER_QUICK=1");
  if (source.text.find("wgmma.mma_async") == std::string::npos)
    source.options.push_back(fmt::format("--split-compile={}", std::clamp<std::size_t>(threads, 1, kMostThreads)));
  source.name += ", quickly";
  return source;
}

/// The full ones begin behind the quick ones, for beside each other both take longer. Their threads are asked for
/// first: NVRTC hangs where it gets none. Without quick ones they serve, or say why not.
std::vector<QuickBinary> compile_both(const std::vector<CudaSource>& sources) {
  std::vector<QuickBinary> binaries;
  std::vector<CudaBinary> compiled;
  {
    const Start start;
    std::vector<CudaSource> quick_ones;
    for (const CudaSource& source : sources) {
      binaries.push_back({{}, Background::shared().compile(source, start.future)});
      quick_ones.push_back(quick(source, sources.size()));
    }
    try {
      compiled = CudaCompiler::shared().compile_all_now(quick_ones);
    } catch (const Error& error) {
      log(LogLevel::info, "cuda: {}", error.what());
    }
  }
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (compiled.empty()) {
      binaries[i] = {binaries[i].full.get(), {}};
    } else {
      binaries[i].binary = std::move(compiled[i]);
      binaries[i].binary.name = sources[i].name;
    }
  }
  return binaries;
}

}  // namespace

std::vector<QuickBinary> compile_quickly(const std::vector<CudaSource>& sources) {
  CudaCompiler& compiler = CudaCompiler::shared();
  const DistinctSources of = distinct(sources);
  std::vector<QuickBinary> binaries(of.first.size());
  std::vector<std::size_t> missing;
  std::vector<CudaSource> texts;
  for (std::size_t i = 0; i < of.first.size(); ++i) {
    if (auto found = compiler.find(sources[of.first[i]])) {
      binaries[i].binary = std::move(*found);
      continue;
    }
    missing.push_back(i);
    texts.push_back(sources[of.first[i]]);
  }
  std::vector<QuickBinary> made;
  try {
    if (!texts.empty() && is_wanted()) made = compile_both(texts);
  } catch (const std::system_error& error) {
    log_once(LogLevel::warning, "cuda: no thread could be started to compile: {}", error.what());
  }
  if (made.empty())
    for (CudaBinary& binary : compiler.compile_all(texts)) made.emplace_back().binary = std::move(binary);
  for (std::size_t j = 0; j < missing.size(); ++j) binaries[missing[j]] = std::move(made[j]);
  std::vector<QuickBinary> all;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    all.push_back(binaries[of.place_of[i]]);
    all.back().binary.name = sources[i].name;
  }
  return all;
}

void finish_compiling() { Background::shared().wait(); }

}  // namespace mercer::jit
