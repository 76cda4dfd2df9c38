#include "plan/gpu/sums/expanded.h"

#include "core/integers.h"
#include "plan/gpu/costs/costs.h"

namespace mercer::plan {

bool pays_expanded(std::int64_t m, std::int64_t n, std::int64_t k, const Costs& costs) {
  const double pairs = static_cast<double>(m) * static_cast<double>(n);
  return k > 0 && k <= kMostExpandedFeatures && pairs >= costs.expanded_from;
}

std::int64_t expanded_chunk_bytes(std::int64_t k) {
  constexpr std::int64_t kChunkBytes = 16, kHalves = 8, kRests = 5;
  return kChunkBytes * (ceil_div(k + 2, kHalves) + ceil_div(kRests * k, kHalves));
}

std::int64_t expanded_shared_bytes(const BilinearTile& tile, std::int64_t k) {
  constexpr std::int64_t kStrip = 32, kBarriers = 16;
  const std::int64_t of_v = tile.columns / kStrip * tile.v_bytes(VPieces::halves);
  return tile.stages * (tile.columns * expanded_chunk_bytes(k) + of_v + kBarriers);
}

BilinearTile expanded_warp_tile(std::int64_t k, int wide, std::int64_t shared_per_block, const ExpandedCosts& costs) {
  const bool few = k <= costs.few_features;
  if (wide > (few ? costs.few_columns : costs.warp_columns)) return {};
  const BilinearTile tile{.columns = 128, .stages = 3, .cluster = 1,
                          .blocks = few && wide <= costs.blocks_columns ? 4 : 3, .wide = wide, .of_values = true,
                          .by_warps = true};
  return tile.blocks * expanded_shared_bytes(tile, k) <= shared_per_block ? tile : BilinearTile{};
}

}  // namespace mercer::plan
