#include "ops/costs/cpu_costs.h"

#include <fmt/format.h>

#include <map>
#include <optional>

#include "core/error.h"
#include "core/system/log.h"
#include "core/system/mutex.h"
#include "mercer/explain.h"
#include "ops/costs/choice_store.h"
#include "ops/costs/cpu_record.h"
#include "plan/cpu/fit_costs.h"
#include "plan/cpu/target.h"

namespace mercer {
namespace ops {

namespace {

/// What was measured on this processor, as it was when this process first asked.
const std::optional<plan::CpuRow>& measured_here() {
  static constinit Lazy<std::optional<plan::CpuRow>> row;
  return row.get([] {
    const std::optional<std::string> record = ChoiceStore::shared().find(record_key(cpu_features()));
    return record ? row_of_record(*record) : std::nullopt;
  });
}

std::string way_key(Target target) { return fmt::format("{}\nways\n{}", record_key(cpu_features()), name_of(target)); }

/// Rows of ways that were measured on this processor, as they were when this process first asked.
const plan::cpu::Costs* measured_ways(Target target) {
  static constinit Lazy<std::map<Target, plan::cpu::Costs>> rows;
  const auto& measured = rows.get([] {
    std::map<Target, plan::cpu::Costs> found;
    for (const plan::TargetInfo* info : plan::targets())
      if (const auto row = stored_way_costs(info->target, ChoiceStore::shared())) found.emplace(info->target, *row);
    return found;
  });
  const auto found = measured.find(target);
  return found == measured.end() ? nullptr : &found->second;
}

}  // namespace

const CpuInUse& cpu_in_use() {
  static constinit Lazy<CpuInUse> in_use;
  return in_use.get([] {
    if (const plan::CpuRow* row = plan::row_of(cpu_features())) return CpuInUse{row, true};
    return measured_here() ? CpuInUse{&*measured_here(), true} : CpuInUse{&plan::kReferenceRow, false};
  });
}

CpuTarget cpu_target(const std::string& name) {
  const std::size_t colon = name.find(':');
  const plan::CpuRow* row = plan::find_row(name.substr(0, colon));
  if (row == nullptr && colon == std::string::npos) return {target_from_text(name), cpu_in_use().row};
  if (row == nullptr) {
    std::string known;
    for (const plan::CpuRow* each : plan::cpu_rows())
      known += fmt::format("{}{}", known.empty() ? "" : each == plan::cpu_rows().back() ? " or " : ", ", each->name);
    fail(ErrorKind::invalid_argument, "target: the family of CPUs must be {}. Received \"{}\".", known, name);
  }
  const Target widest = row->has_wide() ? Target::x86_avx512 : Target::x86_avx2;
  const Target target = colon == std::string::npos ? widest : target_from_text(name.substr(colon + 1));
  require(target != Target::x86_avx512 || row->has_wide(), "target: {} has no x86_avx512. Received \"{}\".", row->name,
          name);
  return {target, row, true};
}

const plan::cpu::Costs& way_costs(Target target) {
  static constexpr plan::cpu::Costs kShipped;
  const plan::cpu::Costs* const own = measured_ways(target);
  return own != nullptr ? *own : kShipped;
}

std::string source_of_way_costs(Target target) {
  return measured_ways(target) != nullptr ? "this processor's own (mercer tune --cpu)" : "measured on Zen 5";
}

std::optional<plan::cpu::Costs> stored_way_costs(Target target, const ChoiceStore& store) {
  const std::optional<std::string> record = store.find(way_key(target));
  if (!record) return std::nullopt;
  std::optional<plan::cpu::Costs> own = plan::cpu::costs_from_record(*record);
  if (!own)
    log(LogLevel::warning, "costs of ways on {}: the store's row does not read and is left out", name_of(target));
  return own;
}

void keep_way_costs(Target target, const plan::cpu::Costs& costs, ChoiceStore& store) {
  store.keep(way_key(target), plan::cpu::costs_record(costs),
             fmt::format("ways of {} on {}", name_of(target), cpu_features().brand));
}

}  // namespace ops

CpuCosts cpu_costs() {
  const ops::CpuInUse& in_use = ops::cpu_in_use();
  const plan::CpuRow& row = *in_use.row;
  if (!in_use.known)
    return {row.name, false,
            fmt::format("those of {}, as this processor is not known; mercer tune --cpu measures it", row.processors)};
  std::string text = fmt::format("{} ({})", row.name, row.processors);
  if (const std::optional<plan::CpuRow>& measured = ops::measured_here(); measured && in_use.row != &*measured) {
    const std::string apart = ops::differences(*measured, row);
    text += apart.empty() ? "; measured here, and the same" : "; measured here: " + apart;
  }
  return {row.name, true, text};
}

}  // namespace mercer
