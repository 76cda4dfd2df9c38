#include "ops/cpu_costs.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/mutex.h"
#include "mercer/explain.h"

namespace mercer {
namespace ops {

const CpuInUse& cpu_in_use() {
  static constinit Lazy<CpuInUse> in_use;
  return in_use.get([] {
    const plan::CpuRow* row = plan::row_of(cpu_features());
    return row != nullptr ? CpuInUse{row, true} : CpuInUse{&plan::kReferenceRow, false};
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
            fmt::format("those of {}, as this processor is not known", row.processors)};
  return {row.name, true, fmt::format("{} ({})", row.name, row.processors)};
}

}  // namespace mercer
