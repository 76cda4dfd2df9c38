// A second look at a float32 tile: pairs whose sums left the range, or are so small beside their points that they lost
// digits (plan/guard.h), are computed again in float64.
#pragma once

#include <vector>

#include "backend/cpu/pair_engine.h"

namespace mercer::cpu {

/// Whether a tile's outputs, which show its sums, leave it open that a pair needs it.
bool may_need_second_look(const PairProgram& program, const PanelView<float>& x, const PanelView<float>& z,
                          const float* out, std::int64_t out_stride);

/// `acc` are the tile's sums, `params` those of the general variant in float64; the values in `out` are replaced.
void second_look(const PairProgram& program, const PairItem& item, const std::vector<double>& params, const float* acc,
                 const PanelView<float>& x, const PanelView<float>& z, float* out, std::int64_t out_stride);

}  // namespace mercer::cpu
