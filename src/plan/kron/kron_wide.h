// A pass over one or two factors of up to 128 x 128 on tensor cores of compute capability 9.0 (kron_wide.cuh).
//
// Floor of a pass on an H200: (bytes read + bytes written) / 4.2 TB/s, or three products of 16-bit pieces, 6 P flops an
// element of each factor's output, at 700 TFLOP/s.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plan/kron/kron_gpu_types.h"

namespace mercer::plan {

struct KronWideCosts;

/// A tile is the matrix of both factors' axes at the end of a row, or P x tile_n of one factor's axis and of what
/// comes after it. All of it but the multiprocessors is part of the kernel.
struct KronWide {
  KronGpuTypes types;
  bool pair = false;
  std::int64_t p1 = 1, q1 = 1, p2 = 1, q2 = 1;  // without a pair the second factor is 1 x 1
  std::int64_t tile_n = 64;                     // columns of the tile as it is multiplied
  std::int64_t groups = 1;                      // tiles of a block at a time
  std::int64_t warpgroups = 1;                  // of a tile
  std::int64_t in_width = 1, out_width = 1;     // elements at a time
  bool whole_n = true;  // all tiles have tile_n columns of what comes after a single factor
  bool column_scales = false;                   // columns may be of different rows of x
  std::int64_t multiprocessors = 132;

  static constexpr std::int64_t kStrip = 64;  // outputs of the second factor at a time
  std::int64_t threads() const { return groups * warpgroups * 128; }
  std::int64_t shared_bytes() const;
  std::int64_t tiles(const KronGpuPlace& place) const;
  std::int64_t blocks(const KronGpuPlace& place) const;
  bool whole() const { return true; }
  /// After scaling magnitudes are below 2^these, the second factor's below 2^kExponent. Sums of a pair's first factor
  /// become 16-bit floats again and stay below 2^kExponent too.
  static constexpr int kExponent = 15;
  int x_exponent() const;
  int first_exponent() const;
  std::string key() const;
  /// An estimate of its time.
  double seconds(const KronGpuPlace& place, const KronWideCosts& costs) const;
};

/// The pass over these neighbours; nothing where the kernel does not serve. A pair must end the row.
std::optional<KronWide> plan_kron_wide(const KronGpuTypes& types, std::span<const KronShape> factors,
                                       const KronGpuPlace& place, const KronGpuProblem& problem);

/// That one, then others that are worth measuring: fewer tiles of a block at a time.
std::vector<KronWide> kron_wide_options(const KronGpuTypes& types, std::span<const KronShape> factors,
                                        const KronGpuPlace& place, const KronGpuProblem& problem);

}  // namespace mercer::plan
