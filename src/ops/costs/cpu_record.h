// Measured costs of a processor as the store keeps them, and next to a row of the table.
#pragma once

#include <optional>
#include <string>

#include "core/system/cpu_features.h"
#include "plan/cpu/cpu_rows.h"

namespace mercer::ops {

/// The key is made of the processor's vendor, family, model and name.
std::string record_key(const CpuFeatures& cpu);
/// Both widths, the latency and the loads; a line a kind.
std::string record_of(const plan::CpuRow& row);
/// Nothing where the text is none of ours.
std::optional<plan::CpuRow> row_of_record(const std::string& record);
/// The kinds whose times alone differ by more than 15 %: "512 bits divide 2.51 (table 6)"; empty where none does.
std::string differences(const plan::CpuRow& measured, const plan::CpuRow& table);

}  // namespace mercer::ops
