// default_thread_count: MERCER_THREADS, else the smallest of the affinity mask, the cgroup's cpu quota (rounded up) and
// OMP_NUM_THREADS.
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "core/system/env.h"
#include "core/system/parallel.h"

namespace mercer {
namespace {

constexpr double kNoQuota = 1e9;

int affinity_count() {
  for (int cpus = 1024; cpus <= 1 << 16; cpus *= 4) {  // EINVAL: the kernel knows more cpus than the mask holds
    cpu_set_t* mask = CPU_ALLOC(cpus);
    const std::size_t bytes = CPU_ALLOC_SIZE(cpus);
    const bool ok = mask != nullptr && ::sched_getaffinity(0, bytes, mask) == 0;
    const int count = ok ? CPU_COUNT_S(bytes, mask) : 0;
    CPU_FREE(mask);
    if (count > 0) return count;
  }
  return std::max(1u, std::thread::hardware_concurrency());
}

/// cgroup v2's cpu.max: "<quota or max> <period>".
double quota_of(const std::string& directory) {
  std::ifstream file(directory + "/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return kNoQuota;
  return std::atof(quota.c_str()) / period;
}

double quota_of_version_1(const std::string& directory) {
  double quota = 0, period = 0;
  if (!(std::ifstream(directory + "/cpu.cfs_quota_us") >> quota) || quota <= 0) return kNoQuota;
  if (!(std::ifstream(directory + "/cpu.cfs_period_us") >> period) || period <= 0) return kNoQuota;
  return quota / period;
}

/// The least quota of this process's group and its parents. Inside a container the path may not exist below the mount:
/// then the root of the mount is the container's own group.
double cgroup_quota() {
  const std::string root = "/sys/fs/cgroup";
  double least =
      std::min({quota_of(root), quota_of_version_1(root + "/cpu"), quota_of_version_1(root + "/cpu,cpuacct")});
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("0::/")) continue;
    for (std::string path = line.substr(3); path.size() > 1; path.resize(path.rfind('/'))) {
      least = std::min(least, quota_of(root + path));
    }
  }
  return least;
}

/// The first number of OMP_NUM_THREADS, which has one for each level; 0 where there is none.
int openmp_count() {
  const char* const text = std::getenv("OMP_NUM_THREADS");
  const long count = text != nullptr ? std::strtol(text, nullptr, 10) : 0;
  return static_cast<int>(std::clamp<long>(count, 0, 4096));
}

}  // namespace

int threads_of_environment() {
  return static_cast<int>(env_integer("MERCER_THREADS", 1, 4096).value_or(0));
}

int usable_cpus() {
  if (const int asked = threads_of_environment()) return asked;
  const double quota = std::max(1.0, std::ceil(cgroup_quota()));
  return static_cast<int>(std::min<double>(affinity_count(), quota));
}

int default_thread_count() {
  const int cpus = usable_cpus(), most = threads_of_environment() > 0 ? 0 : openmp_count();
  return most > 0 ? std::min(cpus, most) : cpus;
}

}  // namespace mercer
