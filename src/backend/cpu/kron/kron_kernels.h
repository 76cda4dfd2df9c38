// What calls of kron keep for the next one: compiled steps, and scratch memory that is not in use.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/system/aligned.h"
#include "core/system/mutex.h"
#include "core/system/recent_cache.h"
#include "jit/kron_compile.h"
#include "plan/kron/kron.h"
#include "plan/kron/kron_step.h"

namespace mercer::cpu {

class KronKernels {
 public:
  /// The kernel of this source, compiled at the first call.
  std::shared_ptr<const jit::KronKernel> get(const plan::KronStepSource& source);
  std::size_t size() const;
  void clear();

  /// Memory of an earlier call where there is enough, and its way back.
  AlignedBuffer take(std::int64_t bytes);
  void give_back(AlignedBuffer buffer);

  /// How products are divided, by problem (ops/tune/tuned_kron.h).
  RecentCache<plan::KronChoice> choices{kMostChoices};

  /// Bytes of x and out from which lines are fetched ahead; -1: half of the third-level cache. Tests take it down.
  std::int64_t ahead_from = -1;

 private:
  /// Steps kept: shapes of some hundred products. Then all are forgotten.
  static constexpr std::size_t kMost = 4096;
  static constexpr std::size_t kMostChoices = 1024;
  /// Larger memory goes back to the system.
  static constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;

  mutable Mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<const jit::KronKernel>> kernels_;
  std::vector<AlignedBuffer> idle_;
};

}  // namespace mercer::cpu
