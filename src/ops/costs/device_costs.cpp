#include "ops/costs/device_costs.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "core/system/log.h"
#include "core/system/mutex.h"
#include "plan/gpu/costs/costs_record.h"

namespace mercer::ops {
namespace {

std::string key_of(const CudaDevice& device) {
  return fmt::format("costs\n{}\n{}", device.architecture(), device.name);
}

/// Costs by the names of devices; none where a device has no row of its own.
class Rows {
 public:
  const std::optional<plan::Costs>& of(const CudaDevice& device) {
    const std::lock_guard lock(mutex_);
    if (const auto found = rows_.find(device.name); found != rows_.end()) return found->second;
    return rows_.emplace(device.name, stored_costs(device, ChoiceStore::shared())).first->second;
  }

 private:
  Mutex mutex_;
  std::map<std::string, std::optional<plan::Costs>> rows_;
};

/// Null where there is none.
const plan::Costs* own_costs(const CudaDevice& device) {
  static constinit Lazy<Rows> rows;
  if (device.name.empty()) return nullptr;
  const std::optional<plan::Costs>& own = rows.get().of(device);
  return own ? &*own : nullptr;
}

}  // namespace

const plan::Costs& device_costs(const CudaDevice& device) {
  const plan::Costs* own = own_costs(device);
  return own != nullptr ? *own : plan::costs_of(device.capability());
}

std::string source_of_costs(const CudaDevice& device) {
  return own_costs(device) != nullptr ? "this device's own (mercer tune --gpu)" : source_of_costs(device.capability());
}

std::string source_of_costs(int capability) {
  const bool is_measured = capability == plan::kMeasuredCapability;
  return fmt::format("compute capability {}.{}, {}", capability / 10, capability % 10,
                     is_measured ? "measured on an H200" : "those of an H200 scaled by data sheets");
}

std::optional<plan::Costs> stored_costs(const CudaDevice& device, const ChoiceStore& store) {
  const std::optional<std::string> record = store.find(key_of(device));
  if (!record) return std::nullopt;
  std::optional<plan::Costs> own = plan::costs_from_record(*record, plan::costs_of(device.capability()));
  if (!own) log(LogLevel::warning, "costs of {}: the store's row does not read and is left out", device.name);
  return own;
}

void keep_costs(const CudaDevice& device, const plan::Costs& costs, ChoiceStore& store) {
  store.keep(key_of(device), plan::costs_record(costs, plan::costs_of(device.capability())),
             fmt::format("costs of {}", device.name));
}

}  // namespace mercer::ops
