// What tiles of products have in shared memory, and what of it belongs to whom (bilinear_tile.cuh, bilinear_warps.cuh).
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "gemm/bilinear_walk.cuh"

#define SUMS (TILE_N / 2)
#define ROW_BYTES 128
// RESIDENT: all units of x stay while a range of n passes by, stages are of z alone.
#define RESIDENT_UNITS (RESIDENT ? 2 + WEIGHT_UNITS : 0)
#define STAGE_ROWS_X (RESIDENT ? 0 : TILE_M)
#define STAGE_BYTES ((STAGE_ROWS_X + TILE_N) * ROW_BYTES)
#define UNIT_BYTES_X (TILE_M * ROW_BYTES)
#define POINT_PLANES 3  // squared norm in two parts, scale
// A warp has 16 rows x 32 columns of values, sums of 16 rows, their states, or a queue.
#define VALUES_BYTES (CONSUMER == 0 ? 2048 : WIDE ? 0 : CONSUMER == 1 ? 64 * COLUMNS : CONSUMER == 2 ? 256 : 768)
// What the epilogue reads of a column; POWERS have theirs with v.
#define COLUMN_PLANES \
  (POWERS ? 0 : POINT_PLANES + COL_SLOTS + (SPREADS ? 1 + (SIDE_SUMS > 0) : CONSUMER == 1 && !WIDE ? COLUMNS : 0))
// Rows of the columns' planes. Tensor cores read eight planes of v at a time: eight floats more, and none collide.
#define V_BY_PRODUCTS (CONSUMER == 1 && COLUMNS > 4 && !WIDE)
#define PLANE_ROW (TILE_N + (V_BY_PRODUCTS ? 8 : 0))
#define COLUMN_BYTES (COLUMN_PLANES * PLANE_ROW * 4)
#define WARP_WEIGHT_BYTES (TILE_N * 20 * 4)  // of a warp's 16 rows, with room between columns
#define REGIONS_N (TILE_N / MERCER_REGION)
// A strip of 16 rows x 64 columns with more pairs than that is computed again as a whole.
#define MOST_LISTED 128

struct BilinearShared {
  static constexpr bool UNIFORM_STAGES = false;  // next to the products with v; in uniform registers or not
  static constexpr bool NORMS_WITH_V = POWERS != 0;
  u32 stages, rows, v, values, columns, weights, bars;
  MERCER_METHOD BilinearShared(u32 base) {
    stages = base;
    rows = stages + STAGES * STAGE_BYTES;
    v = rows + RESIDENT_UNITS * UNIT_BYTES_X;
    values = v + V_STAGES * V_STAGE_BYTES;  // of 32 columns of the tile (wide_fold.cuh)
    columns = values + 8 * VALUES_BYTES;
    weights = columns + (LAST_FEEDS ? 2 : 1) * COLUMN_BYTES;
    bars = weights + (WEIGHT_MATRIX ? 8 * WARP_WEIGHT_BYTES : 0);
  }
  MERCER_METHOD u32 full(int stage) const { return bars + 8 * stage; }
  MERCER_METHOD u32 empty(int stage) const { return bars + 8 * (STAGES + stage); }
  MERCER_METHOD u32 columns_full() const { return bars + 16 * STAGES; }
  MERCER_METHOD u32 columns_empty() const { return bars + 16 * STAGES + 8; }
  // LAST_FEEDS, in that barrier's place: warps that have left a tile's operands, since the first one.
  MERCER_METHOD u32* leaving(u8* memory) const { return (u32*)(memory + (columns_empty() - stages)); }
  MERCER_METHOD u32 rows_full() const { return bars + 16 * STAGES + 16; }
  MERCER_METHOD u32 rows_empty() const { return bars + 16 * STAGES + 24; }
  MERCER_METHOD u32 v_full(int stage) const { return bars + 16 * STAGES + 32 + 8 * stage; }
  MERCER_METHOD u32 v_empty(int stage) const { return v_full(V_STAGES + stage); }
};

// Sums of chunks, and after so many units of the image those of a total: fewer additions follow one another. Totals are
// not for registers; a number of them is read before any is written, for accesses keep their order and loads wait.
#define UNITS_OF_SUM 32
template <class Sums>
MERCER_INLINE void add_sums(float (&sum)[SUMS], const Sums& other) {
#pragma unroll
  for (int i = 0; i < SUMS; ++i) sum[i] += other[i];
}
MERCER_INLINE void put_away(volatile float (&total)[SUMS], float (&sum)[SUMS], bool is_first) {
  constexpr int kTogether = 16;
#pragma unroll
  for (int first = 0; first < SUMS; first += kTogether) {
    float before[kTogether] = {};
    if (!is_first)
#pragma unroll
      for (int i = 0; i < kTogether; ++i) before[i] = total[first + i];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      total[first + i] = before[i] + sum[first + i];
      sum[first + i] = 0;
    }
  }
}

// Blocks of an image after the last one repeat it.
MERCER_INLINE i64 image_block(i64 wanted, i64 ld) {
  const i64 last = ld / MERCER_IMAGE_ROWS - 1;
  return wanted < last ? wanted : last;
}

// What the epilogue reads of a column: plane `which` of the tile that starts at column n0.
MERCER_INLINE const float* column_plane(const BilinearArguments& a, int which, i64 n0) {
  if (which == 0) return a.z.norm + n0;
  if (which == 1) return a.z.norm_tail + n0;
  if (which == 2) return a.z.scale + n0;
  const int slot = which - POINT_PLANES;
  if (slot < COL_SLOTS) return (const float*)a.pairs.z.user + slot * a.pairs.z.ld + n0;
  if (SPREADS) return (slot == COL_SLOTS ? a.shares : a.times) + n0;
  // Columns of v that there are not repeat the last one; nobody stores them.
  const int column = slot - COL_SLOTS < a.pairs.v.columns ? slot - COL_SLOTS : a.pairs.v.columns - 1;
  return (const float*)a.pairs.v.data + column * a.pairs.v.ld + n0;
}
