// Blocks of a streamed call: how many points of each side are on the device at a time.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mercer::ops {

/// Sizes of a call, bytes for each point, and a measure of the work for each pair.
struct StreamSizes {
  std::int64_t m = 0, n = 0;
  std::int64_t x_bytes = 0, z_bytes = 0;
  std::int64_t result_bytes = 0;  // of a point of x; 0 where the pairs themselves are the result
  std::int64_t pair_bytes = 0;    // of a pair that is the result, or 0
  std::int64_t work = 1;
};

struct StreamPlan {
  std::int64_t x_rows = 1, z_rows = 1;  // room of a block
  std::int64_t pairs = 0;               // of a step whose pairs are the result; 0: any number
  bool z_stays = false;                 // all of z has room: it is copied once

  int z_buffers() const { return z_stays ? 1 : 2; }
};

inline constexpr std::int64_t kStreamAlignment = 128;  // points of a block are a multiple, where there are so many

/// A multiple of 128 where that leaves something.
inline std::int64_t rounded_block(std::int64_t count) {
  return count > kStreamAlignment ? count / kStreamAlignment * kStreamAlignment : std::max<std::int64_t>(1, count);
}

/// Blocks that take at most `bytes` of the device, as far as a block of one point does.
inline StreamPlan plan_stream(const StreamSizes& sizes, std::int64_t bytes) {
  // A block of x is as large as hides the copies of z behind its work, and no larger: its results are copied while the
  // next one is computed. Where z comes again for each, it is as large as fits. With 1024 points of z, the least of a
  // step, it takes a second at 10^11 terms a second.
  constexpr std::int64_t kBlockRows = std::int64_t{1} << 18, kMostTerms = std::int64_t{1} << 27;  // a point of z
  constexpr std::int64_t kMostTileBytes = std::int64_t{256} << 20;
  StreamPlan plan;
  const std::int64_t z_bytes = std::max<std::int64_t>(1, sizes.z_bytes);
  plan.z_stays = sizes.n <= bytes / 2 / z_bytes;
  plan.z_rows = plan.z_stays ? std::max<std::int64_t>(1, sizes.n) : rounded_block(bytes / 4 / z_bytes);
  std::int64_t left = bytes - plan.z_buffers() * plan.z_rows * sizes.z_bytes;
  if (sizes.pair_bytes > 0) {
    const std::int64_t tile = std::max(sizes.pair_bytes, std::min(left / 4, kMostTileBytes));
    plan.pairs = tile / sizes.pair_bytes;
    left -= 2 * tile;
  }
  const std::int64_t row = std::max<std::int64_t>(1, 2 * sizes.x_bytes + sizes.result_bytes);
  const std::int64_t work = std::max<std::int64_t>(1, sizes.work);
  std::int64_t most = std::max<std::int64_t>(1024, kMostTerms / work);
  if (plan.z_stays) most = std::min(most, kBlockRows);
  if (plan.pairs > 0)
    most = std::min(most, std::max(plan.pairs / plan.z_rows, std::min<std::int64_t>(256, plan.pairs)));
  plan.x_rows = rounded_block(std::min({left / row, most, sizes.m}));
  return plan;
}

}  // namespace mercer::ops
