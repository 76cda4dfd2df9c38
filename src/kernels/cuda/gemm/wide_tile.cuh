// Products over n with many columns of v, for pairs of few features: values are computed pair by pair, where they serve
// as left operands of products with v (wide_fold.cuh), on tensor cores of compute capability 9.0.
//
//            128 columns n: features from panels, two tiles of them on their way
//           ┌──────────────────────────────┐
//  128 rows │ warpgroup 0: 64 rows         │     a lane has two rows and 16 columns of 32 at a time; its rows' features
//           │ warpgroup 1: 64 rows         │     stay in registers for a range of n
//           └──────────────────────────────┘
//
// Persistent blocks; one warp feeds (wide_kernel.cuh).
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/warpgroups.cuh"
#include "gemm/bilinear_walk.cuh"
#include "gemm/wide_fold.cuh"
#include "pairs/pair_params.cuh"

#define FEED_WARP 8
#define PANEL_STAGES 2
#define TILE_PANELS (TILE_N / MERCER_PANEL)
#if EXPANDED == 1
#define PANEL_BYTES (CHUNKS * MERCER_PANEL * 16)  // expanded_chunks.cuh
#define PANEL_SLOTS 0
#else
#define PANEL_BYTES (EXACT_FEATURES * Z_STREAMS * MERCER_PANEL * 4)
#define PANEL_SLOTS COL_SLOTS
#endif
#define PANEL_STAGE_BYTES (TILE_PANELS * PANEL_BYTES + PANEL_SLOTS * TILE_N * 4)

struct WideShared {
  static constexpr bool UNIFORM_STAGES = true, NORMS_WITH_V = false;
  u32 v, panels, bars;
  MERCER_METHOD explicit WideShared(u32 base) {
    v = base;
    panels = v + V_STAGES * V_STAGE_BYTES;
    bars = panels + PANEL_STAGES * PANEL_STAGE_BYTES;
  }
  MERCER_METHOD u32 panel(int stage) const { return panels + stage * PANEL_STAGE_BYTES; }
  MERCER_METHOD u32 slots(int stage) const { return panel(stage) + TILE_PANELS * PANEL_BYTES; }
  MERCER_METHOD u32 v_full(int stage) const { return bars + 8 * stage; }
  MERCER_METHOD u32 v_empty(int stage) const { return bars + 8 * (V_STAGES + stage); }
  MERCER_METHOD u32 panels_full(int stage) const { return bars + 8 * (2 * V_STAGES + stage); }
  MERCER_METHOD u32 panels_empty(int stage) const { return bars + 8 * (2 * V_STAGES + PANEL_STAGES + stage); }
  MERCER_METHOD void start() const {
    for (int s = 0; s < PANEL_STAGES; ++s) {
      barrier_init(panels_full(s), 1);
      barrier_init(panels_empty(s), FEED_WARP);
    }
  }
};

MERCER_INLINE void feed(const BilinearArguments& a, const WideShared& shared, int rank) {
  const PairArguments& p = a.pairs;
  Ring<PANEL_STAGES> ring = {0, 0};
  Ring<V_STAGES> v_ring = {0, 0};
  Walk walk(a);
#pragma unroll 1
  while (walk.next()) {
    const u32 full = shared.panels_full(ring.stage);
    barrier_await(shared.panels_empty(ring.stage), ring.parity ^ 1);
    barrier_expect(full, PANEL_STAGE_BYTES);
    const u8* panels = (const u8*)p.z.points + walk.n0 / MERCER_PANEL * PANEL_BYTES;
    copy_bulk(shared.panel(ring.stage), panels, TILE_PANELS * PANEL_BYTES, full);
#pragma unroll
    for (int s = 0; s < PANEL_SLOTS; ++s) {
      const float* slots = (const float*)p.z.user + s * p.z.ld + walk.n0;
      copy_bulk(shared.slots(ring.stage) + s * TILE_N * 4, slots, TILE_N * 4, full);
    }
    ring.advance();
    feed_v(a, shared, v_ring, walk.n0, rank);
  }
}

// What a lane has of its two rows.
struct PointRows {
  REAL x[2][EXACT_FEATURES][X_STREAMS + (X_STREAMS == 0)], slots[2][ROW_SLOTS + 1];
  MERCER_METHOD void load(const PairArguments& p, i64 first) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const i64 m = first + 8 * h < p.m ? first + 8 * h : p.m - 1;
      const REAL* from = (const REAL*)p.x.points + m / MERCER_PANEL * (EXACT_FEATURES * X_STREAMS * MERCER_PANEL);
#pragma unroll
      for (int k = 0; k < EXACT_FEATURES; ++k)
#pragma unroll
        for (int s = 0; s < X_STREAMS; ++s) x[h][k][s] = from[(k * X_STREAMS + s) * MERCER_PANEL + m % MERCER_PANEL];
#pragma unroll
      for (int s = 0; s < ROW_SLOTS; ++s) slots[h][s] = ((const REAL*)p.x.user)[s * p.x.ld + m];
    }
  }
};

// Values of rows m, m + 8 and of 16 columns, from column `own` of the tile on: [j][h][q] as in bilinear_pairs.cuh.
MERCER_INLINE void values_of(float (&values)[16], const PairArguments& p, const WideShared& shared,
                             const PointRows& rows, const REAL* params, int stage, i64 m, i64 n0, int own) {
  const REAL* const weights = (const REAL*)p.w;
  const REAL features = (REAL)p.features;
  u32 marked = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int column = own + 8 * j;
    const u32 at = shared.panel(stage) + column / MERCER_PANEL * PANEL_BYTES + column % MERCER_PANEL * 4;
    REAL cols[2][COL_SLOTS + 1], acc[4][STATES + (STATES == 0)];
#pragma unroll
    for (int s = 0; s < COL_SLOTS; ++s) {
      const float2 pair = shared_pair(shared.slots(stage) + (s * TILE_N + column) * 4);
      cols[0][s] = pair.x;
      cols[1][s] = pair.y;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) identity(acc[i]);
#pragma unroll
    for (int k = 0; k < EXACT_FEATURES; ++k) {
      REAL z[2][Z_STREAMS + (Z_STREAMS == 0)];
#pragma unroll
      for (int s = 0; s < Z_STREAMS; ++s) {
        const float2 pair = shared_pair(at + (k * Z_STREAMS + s) * MERCER_PANEL * 4);
        z[0][s] = pair.x;
        z[1][s] = pair.y;
      }
      const REAL w = READS_WEIGHTS ? weights[k] : (REAL)0;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        update(acc[i], rows.x[i / 2][k], z[i % 2], w, rows.slots[i / 2], cols[i % 2], params,
               (REAL)(m + 8 * (i / 2) + p.x.offset), (REAL)(n0 + column + i % 2 + p.z.offset), features);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      REAL outputs[OUTPUTS];
      epilogue(outputs, acc[i], rows.slots[i / 2], cols[i % 2], params, (REAL)(m + 8 * (i / 2) + p.x.offset),
               (REAL)(n0 + column + i % 2 + p.z.offset), features);
      if (is_out_of_range(acc[i])) marked |= 1u << (j * 4 + i);
      values[j * 4 + i] = outputs[0];
    }
  }
#pragma unroll 1
  for (; marked; marked &= marked - 1) {
    const int place = __ffs(marked) - 1;
    const i64 row = m + place / 2 % 2 * 8, column = n0 + own + place / 4 * 8 + place % 2;
    REAL again[OUTPUTS];
    if (row >= p.m || column >= p.n || !has_safe_values(again, p, params, row, column, 0, 0)) continue;
#pragma unroll
    for (int i = 0; i < 16; ++i)
      if (i == place) values[i] = again[0];
  }
}

struct ExpandedRows;  // expanded_powers.cuh

template <class Rows = Either<EXPANDED == 1, ExpandedRows, PointRows>>
MERCER_INLINE void multiply(const BilinearArguments& a, const WideShared& shared, int rank) {
  const PairArguments& p = a.pairs;
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const REAL* const params = params_of(p, 0);
  Ring<PANEL_STAGES> ring = {0, 0};
  Walk walk(a);
  WideSums<WideShared> sums;
  Rows rows;
#pragma unroll 1
  while (walk.next()) {
    const i64 m = walk.m0 + rank * TILE_M + warp * 16 + lane / 4;
    if (walk.starts_range()) rows.load(p, m);
    barrier_wait(shared.panels_full(ring.stage), ring.parity);
    const bool whole = walk.n0 + TILE_N <= p.n;
    const auto make = [&](float (&values)[16], int strip, int) {
      if constexpr (EXPANDED == 1) {
        powers_of(values, rows, shared.panel(ring.stage), strip);
      } else {
        const int own = strip * 32 + lane % 4 * 2;
        values_of(values, p, shared, rows, params, ring.stage, m, walk.n0, own);
        if (whole) return;
#pragma unroll
        for (int i = 0; i < 16; ++i)
          if (walk.n0 + own + i / 4 * 8 + i % 2 >= p.n) values[i] = 0;
      }
    };
    sums.add_tile(a, shared, m, walk, make,
                  [&](int, i64 row) { return EXPANDED == 1 ? p.expanded.row_factors[row] : 1.0f; });
    __syncwarp();
    if (lane == 0) barrier_arrive(shared.panels_empty(ring.stage));
    ring.advance();
  }
}
