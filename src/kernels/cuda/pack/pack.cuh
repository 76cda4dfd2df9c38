// Packing: strided points of any dtype become panels, k-major, that the tiles read with aligned copies.
//
//   values[pack][point / 64][k][stream][point % 64]                 point = 0 … ld - 1, the last point repeated
//   slots [pack][slot][point]                                       PANELS 0: values[pack][k][point]
//
// A block takes 32 points. Features pass through shared memory, 32 at a time, so that both sides of the transposition
// are coalesced. Stage 0 (reductions of one side) runs in double in passes of their own before the streams.
//
//   REAL computing type, POINT element type, STREAMS, STAGES, SLOTS; plain stream s: the feature itself
//   RANGES   the range of each set's values is wanted (panel_range.cuh)
//   PIECES   pieces of the values are wanted too, as those of x, of z, or both (difference_pieces.cuh)
//   EARLY    points alone are read, and the kernel ahead waited for them and for the readers of older panels
//   STREAMS_READ_SLOTS  else blocks of their own (blockIdx.y 0, where slots are wanted) run stage 0
#pragma once

#include "common/arguments.h"
#include "common/overlap.cuh"
#include "common/prelude.cuh"
#include "common/split_precision.cuh"
#include "pack/pack_slices.cuh"
#include "pack/panel_range.cuh"

extern "C" __global__ void __launch_bounds__(PACK_THREADS) pack(const __grid_constant__ PackBothArguments both) {
  if constexpr (!EARLY) wait_for_kernel_ahead();
  const PackArguments& a = both.side[blockIdx.z];
  if (a.products != nullptr && products_stand(*a.products) && !a.products->wants_panels) return;
  if (blockIdx.x >= a.blocks * a.sets) return;
  __shared__ POINT tile[PACK_FEATURES][FETCHED_POINTS + 1];
  __shared__ double slot_values[SLOTS + 1][PACK_POINTS];
  const i64 set = blockIdx.x / a.blocks, block = blockIdx.x % a.blocks;
  const PackSide side{(const POINT*)a.points + batch_offset(a.axes, a.points_step, set), block * PACK_POINTS};
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 item = batch_offset(a.axes, a.item_step, set);
  const double* params = a.params ? (const double*)a.params + item * a.param_count : a.numbers;
  if (a.weights_out && blockIdx.x == 0 && blockIdx.y == 0)
    for (i64 k = threadIdx.x; k < a.k; k += PACK_THREADS) ((REAL*)a.weights_out)[k] = (REAL)weight_of(a, k);
  int row = blockIdx.y, rows = gridDim.y;
  if (SLOTS > 0 && a.slots != nullptr && (row == 0 || STREAMS_READ_SLOTS)) {
    if (warp == 0) {
      i64 point = side.first + lane;
      if (point >= a.count) point = a.count - 1;
      slot_values[0][lane] =
          a.user == nullptr ? 0.0
                            : load_any<double>(a.user, a.user_dtype,
                                               batch_offset(a.axes, a.user_step, set) + point * a.user_stride);
    }
    __syncwarp();
    run_stages(a, side, tile, slot_values, params);
    __syncthreads();
    if (row == 0)
      for (int s = warp; s < SLOTS; s += PACK_THREADS / 32)
        ((REAL*)a.slots)[(set * SLOTS + s) * a.ld + side.first + lane] = (REAL)slot_values[s][lane];
  }
  if (a.values == nullptr) return;
  if (SLOTS > 0 && !STREAMS_READ_SLOTS && a.slots != nullptr) {
    if (row == 0) return;
    --row, --rows;
  }
#if BYTES
  // Four features a word, those after the last are 0 on both sides.
  for_slices(a, side, tile, row, rows, [&](int k0) {
    for (int word = warp; word < PACK_FEATURES / 4 && k0 + 4 * word < a.k; word += PACK_THREADS / 32) {
      u32 bytes = 0;
      for (int b = 0; b < 4; ++b)
        if (k0 + 4 * word + b < a.k) bytes |= (u32)tile[4 * word + b][lane] << 8 * b;
      ((u32*)a.values)[place_of(a, set, k0 / 4 + word, 0, side.first) + lane] = bytes;
    }
  });
  return;
#endif
  ThreadRange range;
  for_slices(a, side, tile, row, rows, [&](int k0) {
#if PIECES
    const i64 point = side.first + lane, pairs = (a.k + 1) / 2, set_size = a.ld * pairs * 16;
    for (int kk = 2 * warp; kk < PACK_FEATURES && k0 + kk < a.k; kk += PACK_THREADS / 16) {
      REAL values[2] = {0, 0};
#pragma unroll
      for (int f = 0; f < 2; ++f) {
        if (k0 + kk + f >= a.k) break;
        REAL stream[1];
        make_streams(stream, tile[kk + f][lane], a, k0 + kk + f, slot_values, lane, params);
        range.include(stream[0]);
        values[f] = stream[0];
        ((REAL*)a.values)[place_of(a, set, k0 + kk + f, 0, side.first) + lane] = stream[0];
      }
      const i64 pair = (k0 + kk) / 2;
      if (a.pieces[0]) store_pieces<false>((u8*)a.pieces[0] + set * set_size, point, pair, pairs, values[0], values[1]);
      if (a.pieces[1]) store_pieces<true>((u8*)a.pieces[1] + set * set_size, point, pair, pairs, values[0], values[1]);
    }
#else
    for (int kk = warp; kk < PACK_FEATURES && k0 + kk < a.k; kk += PACK_THREADS / 32) {
      REAL stream[STREAMS + (STREAMS == 0)];
      const POINT feature = tile[kk][lane];
      make_streams(stream, feature, a, k0 + kk, slot_values, lane, params);
      if constexpr (RANGES) range.include(stream[0]);
      for (int s = 0; s < STREAMS; ++s)
        ((REAL*)a.values)[place_of(a, set, k0 + kk, s, side.first) + lane] = stream[s];
    }
#endif
  });
  if constexpr (EARLY) wait_for_kernel_ahead();
  if constexpr (RANGES) range.join<PACK_THREADS>(a.ranges[set]);
}
