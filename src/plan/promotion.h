// Where sums of float32 over the features are put away, so that few additions follow one another
// (docs/design/promotion.md).
#pragma once

#include <cstdint>

namespace mercer::plan {

/// Features of a chunk at most, whose sum is added to the sums of chunks.
inline constexpr std::int64_t kLongestChunk = 256;
/// Features of a part, whose sums of chunks are added up by themselves: of equal addends n additions may err by n 2^-26
/// of their sum.
inline constexpr std::int64_t kFeaturesOfTotal = 32 * kLongestChunk;

}  // namespace mercer::plan
