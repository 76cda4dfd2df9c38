// What ways cost on one device: the row of its generation, with the numbers that the store has of the device itself.
#pragma once

#include <optional>
#include <string>

#include "ops/costs/choice_store.h"
#include "plan/gpu/costs/costs.h"

namespace mercer::ops {

/// What the store says first holds for the process, whose plans it has a part in.
const plan::Costs& device_costs(const CudaDevice& device);

/// What the store says now; nothing where it has no record. One that cannot be parsed counts as none.
std::optional<plan::Costs> stored_costs(const CudaDevice& device, const ChoiceStore& store);
/// Whose row it is, for people: "this device's own (mercer tune --gpu)", or that of its generation.
std::string source_of_costs(const CudaDevice& device);
std::string source_of_costs(int capability);
/// Has processes that start later plan by these numbers.
void keep_costs(const CudaDevice& device, const plan::Costs& costs, ChoiceStore& store);

}  // namespace mercer::ops
