// A pass over one factor of any size in float64 on tensor cores (kernels/cuda/kron/kron_double.cuh).
//
//   a tile   tile_q outputs of tile_n columns, by a group of warps;  warps_q of them side by side along the outputs
//   held     a block has the factor's tile_q outputs of all p in shared memory, else they come with the stages
//
// Floor of a pass on an H200: (bytes read + bytes written) / 4.2 TB/s, or 2 P flops an element of its output at
// 60 TFLOP/s.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plan/kron/kron_gpu_types.h"

namespace mercer::plan {

struct KronDoubleCosts;

/// All of it but the multiprocessors is part of the kernel.
struct KronDouble {
  KronGpuTypes types;
  std::int64_t p = 1, q = 1;
  bool last = false;  // nothing comes after the factor: neighbours in memory are p or q
  bool held = true;
  bool deep = true;   // instructions 16 deep, of compute capability 9.0
  std::int64_t tile_q = 64, tile_n = 64, warps_q = 1;
  std::int64_t group_warps = 4, groups = 2;  // groups of a block have tiles of their own
  std::int64_t stages = 4, depth = 16;       // and how many p one has
  std::int64_t in_width = 1, out_width = 1;  // elements at a time
  std::int64_t multiprocessors = 132;

  std::int64_t threads() const { return groups * group_warps * 32; }
  std::int64_t steps() const;
  std::int64_t q_tiles() const;
  std::int64_t shared_bytes() const;
  std::int64_t blocks(const KronGpuPlace& place) const;
  /// Whether one tile reads all that it replaces.
  bool whole() const { return q_tiles() == 1; }
  std::string key() const;
  /// An estimate of its time.
  double seconds(const KronGpuPlace& place, const KronDoubleCosts& costs) const;
};

/// The fastest tile by its estimate; nothing where the kernel does not serve.
std::optional<KronDouble> plan_kron_double(const KronGpuTypes& types, std::span<const KronShape> factors,
                                           const KronGpuPlace& place, const KronGpuProblem& problem);

/// Some tiles, that one and then the next by their estimates.
std::vector<KronDouble> kron_double_options(const KronGpuTypes& types, std::span<const KronShape> factors,
                                            const KronGpuPlace& place, const KronGpuProblem& problem);

}  // namespace mercer::plan
