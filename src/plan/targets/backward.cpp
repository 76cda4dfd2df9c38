// What backwards cost, a row for each generation. Other points take 40 launches more, half a millisecond: measured on
// two cores of Zen 5 and on an H200.
#include "plan/backward/backward_costs.h"

namespace mercer::plan {
namespace {

// capability; work of other points; tiny items, and many of them; names alone of factors and of a matrix
constexpr BackwardCosts kCosts[] = {
    {0, std::int64_t{1} << 22, 0, 0, 2, 1},
    {80, std::int64_t{1} << 29, std::int64_t{1} << 16, 32, 2, 1},
};

}  // namespace

const BackwardCosts& backward_costs(int capability) {
  const BackwardCosts* best = &kCosts[0];
  for (const BackwardCosts& row : kCosts)
    if (row.capability <= capability) best = &row;
  return *best;
}

}  // namespace mercer::plan
