#include "ops/costs/cpu_costs.h"

#include <fmt/format.h>

#include <optional>

#include "core/error.h"
#include "core/system/mutex.h"
#include "mercer/explain.h"
#include "ops/costs/choice_store.h"
#include "ops/costs/cpu_record.h"

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
