// Measured choices: which of several ways to compute a call is the fastest on a device.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "core/devices/cuda_driver.h"
#include "core/system/file_cache.h"
#include "core/system/mutex.h"
#include "core/system/recent_cache.h"

namespace mercer::ops {

/// What choices are measured for.
struct DeviceName {
  std::string architecture;  // "sm_90a"
  std::string name;          // empty: a device that stands for its generation, of which nothing is measured

  static DeviceName of(const CudaDevice& device) { return {device.architecture(), device.name}; }
};

/// One of several ways, as the store has it and as people read it.
struct Choice {
  std::string record, text;
};

/// The choices of this machine, a file each in the cache of kernels; those of this process also in memory, for a cache
/// that is off. What the disk said once holds for the process: the scratch memory of a call follows from its plan.
class ChoiceStore {
 public:
  explicit ChoiceStore(FileCache cache) : cache_(std::move(cache)) {}
  /// That of MERCER_CACHE_DIR.
  static ChoiceStore& shared();

  /// The record; nothing where the file is missing or damaged.
  std::optional<std::string> find(const std::string& key) const;
  /// `title` is a line for people.
  void keep(const std::string& key, const std::string& record, const std::string& title);

 private:
  static constexpr std::size_t kRead = 4096;

  FileCache cache_;
  mutable Mutex mutex_;
  std::map<std::string, std::string> kept_;
  mutable RecentCache<std::optional<std::string>> read_{kRead};
};

}  // namespace mercer::ops
