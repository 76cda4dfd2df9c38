// Squares of differences of few features, expanded (kernels/cuda/pairs/expanded.cuh): when, and the tile of many
// columns.
#pragma once

#include <cstdint>

#include "plan/gpu/sums/bilinear_tile.h"


namespace mercer::plan {

struct ExpandedCosts;

/// Features up to which there are kernels of expanded squares, in products; whether they pay.
inline constexpr int kMostExpandedFeatures = 8;
bool pays_expanded(std::int64_t m, std::int64_t n, std::int64_t k, const Costs& costs);

/// Bytes of a point in chunks of 16 bits, from which products of matrices make exponents (kernels/cuda/
/// expanded_chunks.cuh).
std::int64_t expanded_chunk_bytes(std::int64_t k);

/// The tile of so many columns of v by products of a warp (kernels/cuda/gemm/wide_warps.cuh); empty of more than it
/// serves, and where its blocks do not fit a multiprocessor together.
BilinearTile expanded_warp_tile(std::int64_t k, int wide, std::int64_t shared_per_block, const ExpandedCosts& costs);
/// Bytes of shared memory of that tile.
std::int64_t expanded_shared_bytes(const BilinearTile& tile, std::int64_t k);

}  // namespace mercer::plan
