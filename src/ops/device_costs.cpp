#include "ops/device_costs.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "core/log.h"
#include "core/mutex.h"
#include "plan/gpu/costs_record.h"

namespace mercer::ops {
namespace {

std::string key_of(const CudaDevice& device) {
  return fmt::format("costs\n{}\n{}", device.architecture(), device.name);
}

/// By the names of devices.
class Rows {
 public:
  const plan::Costs& of(const CudaDevice& device) {
    const std::lock_guard lock(mutex_);
    if (const auto found = rows_.find(device.name); found != rows_.end()) return found->second;
    return rows_.emplace(device.name, stored_costs(device, ChoiceStore::shared())).first->second;
  }

 private:
  Mutex mutex_;
  std::map<std::string, plan::Costs> rows_;
};

}  // namespace

const plan::Costs& device_costs(const CudaDevice& device) {
  static constinit Lazy<Rows> rows;
  return device.name.empty() ? plan::costs_of(device.capability()) : rows.get().of(device);
}

plan::Costs stored_costs(const CudaDevice& device, const ChoiceStore& store) {
  const plan::Costs& base = plan::costs_of(device.capability());
  const std::optional<std::string> record = store.find(key_of(device));
  const std::optional<plan::Costs> own = record ? plan::costs_from_record(*record, base) : std::nullopt;
  if (record && !own) log(LogLevel::warning, "costs of {}: the store's row does not read and is left out", device.name);
  return own.value_or(base);
}

void keep_costs(const CudaDevice& device, const plan::Costs& costs, ChoiceStore& store) {
  store.keep(key_of(device), plan::costs_record(costs, plan::costs_of(device.capability())),
             fmt::format("costs of {}", device.name));
}

}  // namespace mercer::ops
