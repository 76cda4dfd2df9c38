// Ranges of n, each with blocks of its own, by which few tiles of m fill a device.
#pragma once

#include <cstdint>

namespace mercer::cuda {

/// How a call is cut: tiles of m, what they have of n, and how many blocks run at once.
struct Cut {
  std::int64_t tiles_m, tiles_n, tile_n, slots;
};

/// The fewest with which the last wave of blocks leaves little of the device idle.
std::int64_t choose_splits(const Cut& cut);

}  // namespace mercer::cuda
