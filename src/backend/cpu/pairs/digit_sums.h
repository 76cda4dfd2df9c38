// Squared differences of float32 points from digits of 8 bits, as AMX multiplies them (docs/design/cpu_ways.md).
//
//   x - centre = scale (2^16 a + 2^8 b + c)      a, b, c: int8, scale: a power of two for each point
//   x z = scale of x times that of z times
//         2^32 aa + 2^24 (ab + ba) + 2^16 (ac + bb + ca) + 2^8 (bc + cb), and cc, which is left out
//
//   points  blocks of 32: [digit][step of 64 features][half] tiles of 1 KiB
//           rows     [16 points][64 features]
//           columns  [16 groups of 4 features][16 points][4 features]
#pragma once

#include <cstdint>

namespace mercer::cpu {

inline constexpr std::int64_t kDigits = 3, kDigitStep = 64, kDigitBlock = 32, kDigitTile = 1024;

/// Bytes of a block of points.
constexpr std::int64_t digit_bytes(std::int64_t steps) { return kDigits * steps * 2 * kDigitTile; }

/// What a point has with its digits: zeros where there is none.
struct DigitNumbers {
  float* scales;
  float* norms;  // squares of what its digits stand for
  float* least;  // a squared difference may be wrong below the sum of those of its points
};

/// A block of at most 32 points, features side by side, to be taken apart.
struct DigitPoints {
  const float* points;
  std::int64_t stride, count, features;
  const double* centre;
  bool as_columns;
  std::int8_t* digits;
  DigitNumbers numbers;
};

/// A block of rows next to `blocks` of columns, one after the other.
struct DigitBlock {
  const std::int8_t *x, *z;
  std::int64_t steps, blocks;
  DigitNumbers x_numbers, z_numbers;
  float* out;                // [32][32 blocks], squared differences
  std::int64_t out_stride;
  const float* ahead;        // what is written next, laid out as out: brought into the cache meanwhile; null: nothing
  std::int64_t ahead_stride;
  std::uint32_t* doubtful;   // [blocks][32], a bit for each column: the value may be wrong
};

struct DigitKernels {
  /// False: a value is not finite, or too far from 1 for digits and their sums to be normal numbers.
  bool (*pack)(const DigitPoints& points);
  void (*squares)(const DigitBlock& block);
};

/// Kernels with AMX, which this process must have been granted, or with plain loops over the tiles.
const DigitKernels& digit_kernels(bool by_amx);

const DigitKernels& digit_kernels_amx();
const DigitKernels& digit_kernels_baseline();

}  // namespace mercer::cpu
