#include "plan/gpu/costs/costs_record.h"

#include "plan/gpu/costs/costs_fields.h"
#include "plan/named_costs.h"

namespace mercer::plan {

std::string costs_record(const Costs& costs, const Costs& base) { return record_of_costs(costs, base); }

std::optional<Costs> costs_from_record(std::string_view record, const Costs& base) {
  return costs_of_record(record, base);
}

}  // namespace mercer::plan
