#include "backend/cuda/runtime/ranges.h"

#include <algorithm>

#include "core/integers.h"

namespace mercer::cuda {
namespace {

/// Columns that one block adds up at most, in sums of some tiles: longer ones of float32 would lose the contract.
constexpr std::int64_t kLongestRange = 32768;
constexpr std::int64_t kMostSplits = 64;

}  // namespace

std::int64_t choose_splits(const Cut& cut) {
  const std::int64_t longest_range = kLongestRange / cut.tile_n;
  const std::int64_t least = std::max<std::int64_t>(1, ceil_div(cut.tiles_n, longest_range));
  const std::int64_t most = std::min(cut.tiles_n, std::max(least, kMostSplits));
  std::int64_t best = least;
  double best_use = 0;
  for (std::int64_t splits = least; splits <= most; ++splits) {
    const std::int64_t blocks = cut.tiles_m * splits, waves = ceil_div(blocks, cut.slots);
    // A wave takes as long as its longest range.
    const std::int64_t longest = ceil_div(cut.tiles_n, splits);
    const double use =
        static_cast<double>(cut.tiles_m * cut.tiles_n) / static_cast<double>(waves * cut.slots * longest);
    if (use > best_use * 1.03) {
      best = splits;
      best_use = use;
    }
  }
  return best;
}

}  // namespace mercer::cuda
