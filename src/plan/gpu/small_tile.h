// Which threads have a small matrix (kernels/cuda/linalg/small_matrix.cuh): one a row.
#pragma once

#include <bit>
#include <cstdint>

#include "mercer/tensor.h"

namespace mercer::plan {

/// Right-hand sides that a team solves for at once.
inline constexpr std::int64_t kSmallColumns = 4;

/// What a kernel of small matrices does.
enum class SmallVerb { cholesky, lu, eigh };

struct SmallTile {
  int width = 0;   // elements of a row that a thread holds
  int team = 0;    // threads of a matrix
  int blocks = 0;  // that a multiprocessor should hold: the most that leave enough registers

  /// Threads of a block: four warps of teams, or one team of two warps or four.
  int threads() const { return team > 32 ? team : 128; }
  int teams() const { return threads() / team; }

  /// Shared memory of float32 that a launch asks for; 0: what the kernel has itself will do.
  std::int64_t shared_bytes() const {
    constexpr std::int64_t kMostWithout = 64, kValue = 4, kRest = 256;
    const std::int64_t w = width;
    return w <= kMostWithout ? 0 : (w * (w + 1) + 2 * (w + 4) + w) * kValue + kRest;
  }
};

/// Orders that there are tiles for: a thread's registers hold 128 values of float32, 64 of float64.
inline std::int64_t most_of_small_tiles(Dtype type) { return type == Dtype::float64 ? 64 : 128; }

/// The tile for matrices of 1 ... 128 rows: few widths, so that few kernels are compiled. Between 64 and 128 a team has
/// threads without a row, for which the compiler spills: 104 took longer than 128.
inline SmallTile small_tile(std::int64_t order, Dtype type) {
  struct Row {
    int width, blocks, double_blocks;
  };
  for (const Row& row : {Row{4, 10, 8}, Row{8, 10, 8}, Row{12, 8, 6}, Row{16, 8, 5}, Row{24, 5, 4}, Row{32, 5, 4},
                         Row{48, 8, 4}, Row{64, 8, 4}, Row{128, 3, 0}})
    if (order <= row.width)
      return {row.width, static_cast<int>(std::bit_ceil(static_cast<unsigned>(row.width))),
              type == Dtype::float64 ? row.double_blocks : row.blocks};
  return {};
}

/// Orders whose eigenvalues are found by small tiles.
inline constexpr std::int64_t kMostOfSmallEigen = 32;

/// The tile for eigenvalues: as wide as there are threads, with another row of each in registers.
inline SmallTile small_eigen_tile(std::int64_t order, Dtype type) {
  struct Row {
    int width, blocks, double_blocks;
  };
  for (const Row& row : {Row{4, 8, 8}, Row{8, 8, 6}, Row{16, 6, 4}, Row{32, 4, 2}})
    if (order <= row.width) return {row.width, row.width, type == Dtype::float64 ? row.double_blocks : row.blocks};
  return {};
}

}  // namespace mercer::plan
