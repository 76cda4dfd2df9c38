// The state behind mercer::Context: the thread pool, the target, and the compiled programs of formulas.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "backend/cpu/kron_kernels.h"
#include "backend/cpu/operations.h"
#include "backend/cuda/operations.h"
#include "backend/dense_job.h"
#include "core/parallel.h"
#include "mercer/device.h"

namespace mercer {

/// A bounded map from keys to shared values; the least recently used entry goes first. Thread-safe. Values are built
/// outside the lock, so two threads may build the same one; the first stored wins.
template <class Value>
class RecentCache {
 public:
  explicit RecentCache(std::size_t capacity) : capacity_(capacity) {}

  template <class Make>
  std::shared_ptr<const Value> get(const std::string& key, Make&& make) {
    {
      std::lock_guard lock(mutex_);
      if (auto found = index_.find(key); found != index_.end()) {
        order_.splice(order_.begin(), order_, found->second);
        return found->second->second;
      }
    }
    std::shared_ptr<const Value> value = make();
    std::lock_guard lock(mutex_);
    if (auto found = index_.find(key); found != index_.end()) return found->second->second;
    order_.emplace_front(key, value);
    index_.emplace(key, order_.begin());
    if (order_.size() > capacity_) {
      index_.erase(order_.back().first);
      order_.pop_back();
    }
    return value;
  }

  /// What is there, or null.
  std::shared_ptr<const Value> find(const std::string& key) const {
    std::lock_guard lock(mutex_);
    const auto found = index_.find(key);
    return found == index_.end() ? nullptr : found->second->second;
  }

  /// Forgets the values of which `wanted` says so; it must not use this cache.
  template <class Wanted>
  void erase_if(const Wanted& wanted) {
    std::lock_guard lock(mutex_);
    std::erase_if(index_, [&](const auto& entry) { return wanted(*entry.second->second); });
    std::erase_if(order_, [&](const Entry& entry) { return !index_.contains(entry.first); });
  }

  std::size_t size() const {
    std::lock_guard lock(mutex_);
    return order_.size();
  }
  void clear() {
    std::lock_guard lock(mutex_);
    index_.clear();
    order_.clear();
  }

 private:
  using Entry = std::pair<std::string, std::shared_ptr<const Value>>;
  std::size_t capacity_;
  mutable std::mutex mutex_;
  std::list<Entry> order_;
  std::unordered_map<std::string, typename std::list<Entry>::iterator> index_;
};

struct Context::State {
  State();
  /// Plans kept: more than a program uses, few enough that a stream of new formulas does not grow memory.
  static constexpr std::size_t kPlans = 256;

  Pool pool;
  std::atomic<Target> target;
  std::atomic<Precision> precision{Precision::fp32};
  double mixed_from = plan::kMixedFrom;  // tests take it down, before their first call
  double tensor_cores_from = plan::kTensorCoresFrom;  // likewise
  double wide_from = plan::kWideFrom;                    // likewise
  std::int64_t candidates_from = 4096;  // points of z from which few neighbours are found while pairs are computed
  bool products_by_warps = false;                     // likewise, where a GPU has both kinds
  std::int64_t part_bytes = cuda::kPartBytes;         // likewise
  std::int64_t dense_bytes = kDenseBytes;  // likewise
  std::int64_t blocked_from = kBlockedFrom;            // likewise
  LuChoice lu;                                         // likewise
  std::int64_t small_until = kSmallUntil;              // likewise
  double least_gain = plan::kLeastGain;  // likewise
  cpu::IntegerTiles integer_tiles;
  RecentCache<cpu::PairProgram> pairs{kPlans};
  RecentCache<cpu::FieldProgram> fields{kPlans};
  RecentCache<cuda::PairKernels> cuda_pairs{kPlans};
  RecentCache<cuda::FieldKernels> cuda_fields{kPlans};
  RecentCache<jit::UpdateKernel> dots{32};
  RecentCache<jit::EpilogueKernel> exponentials{32};
  cpu::KronKernels kron;
};

}  // namespace mercer
