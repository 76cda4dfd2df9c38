#include "plan/expanded.h"

#include "core/integers.h"

namespace mercer::plan {

bool pays_expanded(std::int64_t m, std::int64_t n, std::int64_t k, double from) {
  const double pairs = static_cast<double>(m) * static_cast<double>(n);
  return k > 0 && k <= kMostExpandedFeatures && pairs >= from;
}

std::int64_t expanded_chunk_bytes(std::int64_t k) {
  constexpr std::int64_t kChunkBytes = 16, kHalves = 8, kRests = 5;
  return kChunkBytes * (ceil_div(k + 1, kHalves) + ceil_div(kRests * k, kHalves));
}

std::int64_t expanded_shared_bytes(const BilinearTile& tile, std::int64_t k) {
  constexpr std::int64_t kStrip = 32, kBarriers = 16;
  const std::int64_t of_v = tile.columns / kStrip * tile.v_bytes(VPieces::halves);
  return tile.stages * (tile.columns * expanded_chunk_bytes(k) + of_v + kBarriers);
}

// Milliseconds of 100000 x 100000 points of 3 features by a warp's products and by those of warpgroups, on an H200: of
// 24 columns 5.8 and 7.8, of 32 7.0 and 8.3, of 40 10.6 and 8.8; of 8 features and 32 columns 10.2 and 9.7.
BilinearTile expanded_warp_tile(std::int64_t k, int wide, std::int64_t shared_per_block) {
  constexpr int kFewFeatures = 4, kMostColumns = 24, kMostOfFew = 32, kOfFourBlocks = 16;
  const bool few = k <= kFewFeatures;
  if (wide > (few ? kMostOfFew : kMostColumns)) return {};
  const BilinearTile tile{.columns = 128, .stages = 3, .cluster = 1,
                          .blocks = few && wide <= kOfFourBlocks ? 4 : 3, .wide = wide, .of_values = true,
                          .by_warps = true};
  return tile.blocks * expanded_shared_bytes(tile, k) <= shared_per_block ? tile : BilinearTile{};
}

}  // namespace mercer::plan
