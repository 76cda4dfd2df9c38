// Panels in pieces (difference_pieces.cuh), where integers were tried first; elsewhere packing writes both.
#pragma once

#include "common/arguments.h"
#include "common/overlap.cuh"
#include "common/prelude.cuh"
#include "pack/difference_pieces.cuh"
#include "pairs/mixed.cuh"

#define PIECES_THREADS 256
#define PIECES_PAIRS 32  // of features, of a block

extern "C" __global__ void __launch_bounds__(PIECES_THREADS) write_pieces(const __grid_constant__ MixedArguments a) {
  wait_for_kernel_ahead();
  const MixedSide& side = a.side[blockIdx.z];
  if (!have_pieces(*a.side[0].range, *a.side[1].range) || mixed_stands(*a.state)) return;
  if (blockIdx.x >= side.ld / MERCER_DIFFERENCE_PANEL) return;
  const i64 pairs = (a.k + 1) / 2;
  const i64 point = (i64)blockIdx.x * MERCER_DIFFERENCE_PANEL + threadIdx.x % MERCER_DIFFERENCE_PANEL;
  const float* from = side.values + point / MERCER_PANEL * a.k * MERCER_PANEL + point % MERCER_PANEL;
  constexpr int kTogether = PIECES_THREADS / MERCER_DIFFERENCE_PANEL;
  const i64 first = (i64)blockIdx.y * PIECES_PAIRS + threadIdx.x / MERCER_DIFFERENCE_PANEL;
#pragma unroll
  for (int p = 0; p < PIECES_PAIRS / kTogether; ++p) {
    const i64 pair = first + p * kTogether;
    if (pair >= pairs) return;
    const float one = from[2 * pair * MERCER_PANEL];
    const float other = 2 * pair + 1 < a.k ? from[(2 * pair + 1) * MERCER_PANEL] : 0.0f;
    if (blockIdx.z == 0)
      store_pieces<false>(side.pieces, point, pair, pairs, one, other);
    else
      store_pieces<true>(side.pieces, point, pair, pairs, one, other);
  }
}
