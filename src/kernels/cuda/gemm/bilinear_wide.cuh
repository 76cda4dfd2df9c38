// Values of a tile of products, times many columns of v (wide_fold.cuh).
//
// SPREADS: their squares times the shares of the columns are added up. WEIGHS: before, they are multiplied with sums of
// other products, or a matrix (rank_field.cuh). SIDE_SUMS: so are more values, which are added up times a plane's.
// EXTRA: the value after those is multiplied with columns of its own.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "gemm/bilinear_pairs.cuh"
#include "gemm/bilinear_shared.cuh"
#include "gemm/bilinear_values.cuh"
#include "gemm/bilinear_walk.cuh"
#include "gemm/rates.cuh"
#include "gemm/wide_fold.cuh"

#define WEIGHS (WEIGHT_UNITS > 0 || WEIGHT_MATRIX)
// A matrix of weights: of the 16 rows of a warp those of the next tile are copied to shared memory while one is
// multiplied with v, along the axis whose neighbours lie together, and read in the order of the sums. What is not there
// is zero, or of a row that nobody stores.
struct WeightTile {
  static constexpr int kRows = 16, kRowLength = TILE_N + 8, kColumnLength = kRows + 4;  // so that banks do not collide
  const BilinearArguments& a;
  const u32 place;
  const bool turned;  // neighbours of a column lie together

  MERCER_METHOD WeightTile(const BilinearArguments& arguments, const BilinearShared& shared)
      : a(arguments), place(shared.weights + threadIdx.x / 32 * WARP_WEIGHT_BYTES),
        turned(a.weights_row == 1 && a.weights_column != 1) {}

  // A thread's copies of BYTES each. `along`: the axis whose neighbours lie together, of a tile's LENGTH.
  template <int BYTES, int LENGTH>
  MERCER_METHOD void copy(i64 along, i64 across, i64 along_end, i64 across_end, i64 step, i64 across_step,
                          int length) const {
    constexpr int kValues = BYTES / 4, kChunks = LENGTH / kValues;
#pragma unroll
    for (int i = 0; i < kRows * TILE_N / kValues / 32; ++i) {
      const int chunk = i * 32 + threadIdx.x % 32, line = chunk / kChunks, first = chunk % kChunks * kValues;
      const i64 left = across + line < across_end ? along_end - along - first : 0;
      const float* from = a.weights + (across + line) * across_step + (along + first) * step;
      copy_up_to<BYTES>(place + (line * length + first) * 4, from,
                        left >= kValues ? BYTES : left > 0 ? (u32)left * 4 : 0);
    }
  }

  MERCER_METHOD void fetch(i64 m, i64 n0) const {
    const PairArguments& p = a.pairs;
    if (turned && a.weights_whole)
      copy<16, kRows>(m, n0, p.m, p.n, 1, a.weights_column, kColumnLength);
    else if (turned)
      copy<4, kRows>(m, n0, p.m, p.n, 1, a.weights_column, kColumnLength);
    else if (a.weights_whole)
      copy<16, TILE_N>(n0, m, p.n, p.m, 1, a.weights_row, kRowLength);
    else
      copy<4, TILE_N>(n0, m, p.n, p.m, a.weights_column, a.weights_row, kRowLength);
    commit_copies();
  }

  MERCER_METHOD void take(float (&weights)[SUMS]) const {
    const int row = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    const float scale = *a.weights_scale;
    wait_copies<0>();
    __syncwarp();
#pragma unroll
    for (int j = 0; j < TILE_N / 8; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float2 both;
        if (turned) {
          const u32 at = place + ((j * 8 + column) * kColumnLength + row + 8 * h) * 4;
          both = {shared_float(at), shared_float(at + kColumnLength * 4)};
        } else {
          both = shared_pair(place + ((row + 8 * h) * kRowLength + j * 8 + column) * 4);
        }
        weights[j * 4 + h * 2] = both.x * scale;
        weights[j * 4 + h * 2 + 1] = both.y * scale;
      }
    __syncwarp();
  }
};

struct RatedRows;  // rated_halves.cuh, rated_floats.cuh

struct Consumer {
  typedef Either<POWERS != 0, RatedRows, RowNorms> Rows;
  WideSums<BilinearShared> sums;
  float weights[WEIGHS ? SUMS : 1];
  // SPREADS alone has these.
  float spread[2];  // rows m and m + 8
  bool allowed;     // no sum of values needs a test
  float side_sums[SIDE_SUMS + 1][2];

  MERCER_METHOD void weigh(float (&values)[16], int strip) {
#pragma unroll
    for (int i = 0; WEIGHS && i < 16; ++i) values[i] *= weights[strip * 16 + i];
  }
  MERCER_METHOD void add_shares(const float (&values)[16], const FoldStrip& place) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = (POINT_PLANES + COL_SLOTS) * PLANE_ROW + place.own + 8 * j;
      const float2 shares = shared_pair(place.columns + at * 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float value = values[j * 4 + i];
        spread[i / 2] = mul_add(value * value, i % 2 == 0 ? shares.x : shares.y, spread[i / 2]);
      }
    }
  }
  // As WideSums::store, sums of rows m and m + 8 to `array` [partial_ld].
  static MERCER_METHOD void store_rows(float* array, const float (&rows)[2], const BilinearArguments& a, i64 m,
                                       const Walk& walk) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = rows[h] + __shfl_xor_sync(0xffffffffu, rows[h], 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const i64 row = m + 8 * h;
      if (threadIdx.x % 4 != 0 || row >= a.pairs.m) continue;
      array[row] = walk.is_first_sum() ? sum : array[row] + sum;
    }
  }
  MERCER_METHOD void store(const BilinearArguments& a, i64 m, const Walk& walk) const {
    store_rows(a.spread + walk.split * a.pairs.out.partial_ld, spread, a, m, walk);
#pragma unroll
    for (int f = 0; f < SIDE_SUMS; ++f)
      store_rows(a.side_sums + (walk.split * SIDE_SUMS + f) * a.pairs.out.partial_ld, side_sums[f], a, m, walk);
  }
  // Adds the values of side sums of the strip's pair `place`, which counts if it is there.
  MERCER_METHOD void add_side_sums(float (&sums)[SIDE_SUMS + 1][2], int place, const REAL (&outputs)[OUTPUTS],
                                   int strip, const FoldStrip& columns, bool is_there) const {
    if (SIDE_SUMS == 0 || !is_there) return;
    const int plane = (POINT_PLANES + COL_SLOTS + 1) * PLANE_ROW;
    float times = shared_float(columns.columns + (plane + columns.own + place / 4 * 8 + place % 2) * 4);
    if (WEIGHS) times *= weights[strip * 16 + place];
#pragma unroll
    for (int f = 0; f < SIDE_SUMS; ++f) {
      float& sum = sums[f][place / 2 % 2];
      sum = mul_add(outputs[1 + f], times, sum);
    }
  }

  static MERCER_METHOD void start(const BilinearArguments&, i64) {}
  static MERCER_METHOD void finish(const CandidateArguments&) {}

  // `Rated` are RatedRows.
  template <class Rated>
  MERCER_METHOD void take(const BilinearArguments& a, const BilinearShared& shared, const float (&sum)[SUMS], i64 m,
                          const Walk& walk, const Rated& x) {
    const PairArguments& p = a.pairs;
    const auto make = [&](float (&values)[16], int strip, int stage) {
      x.values(values, sum + strip * 16, StageNorms{sums.norms_of(shared, stage)}, p, m, walk.n0 + strip * 32);
    };
    sums.add_tile(a, shared, m + threadIdx.x % 32 / 4, walk, make,
                  [&](int h, i64) { return x.factor(h); });
  }
  MERCER_METHOD void take(const BilinearArguments& a, const BilinearShared& shared, const float (&sum)[SUMS], i64 m,
                          const Walk& walk, const RowNorms& x) {
    const PairArguments& p = a.pairs;
    const int lane = threadIdx.x % 32;
    Params own;
    if (KEEPS_PARAMS) own.load(p, 0);
    const float* params = KEEPS_PARAMS ? own.value : member_params(p, 0);
    float row_slots[2][ROW_SLOTS + 1];
#pragma unroll
    for (int h = 0; h < 2; ++h) load_row_slots(row_slots[h], p, m + lane / 4 + 8 * h);
    const bool whole = walk.n0 + TILE_N <= p.n;
    if (SPREADS && walk.starts_sum()) {
      spread[0] = spread[1] = 0;
#pragma unroll
      for (int f = 0; f < SIDE_SUMS; ++f) side_sums[f][0] = side_sums[f][1] = 0;
    }
    float of_tile[SIDE_SUMS + 1][2] = {};
    if (!SPREADS)
      allowed = false;  // powers of two are all that has an allowance
    else if (walk.starts_range())
      allowed = is_all_allowed(p, params);
    const auto make = [&](float (&values)[16], int strip, int) {
      const FoldStrip place = {shared.columns, strip * 32 + lane % 4 * 2, m + lane / 4, walk.n0};
      strip_values(values, sum + strip * 16, x, p, place, m, strip * 32, row_slots, params, allowed,
                   [&](int at, const REAL(&outputs)[OUTPUTS]) {
                     if (!SPREADS || (!SIDE_SUMS && !EXTRA)) return;
                     const bool is_there = whole || place.has(p, at / 4, at % 2);
                     add_side_sums(of_tile, at, outputs, strip, place, is_there);
                     if constexpr (EXTRA > 0) sums.extra[at] = is_there ? outputs[1 + SIDE_SUMS] : 0.0f;
                   });
      if (!whole) {
#pragma unroll
        for (int i = 0; i < 16; ++i)
          if (!place.has(p, i / 4, i % 2)) values[i] = 0;
      }
      if constexpr (SPREADS) {
        weigh(values, strip);
        add_shares(values, place);
      }
    };
    sums.add_tile(a, shared, m + lane / 4, walk, make, [](int, i64) { return 1.0f; });
#pragma unroll
    for (int f = 0; f < SIDE_SUMS; ++f) {
      side_sums[f][0] += of_tile[f][0];
      side_sums[f][1] += of_tile[f][1];
    }
    if (SPREADS && walk.ends_sum()) store(a, m + lane / 4, walk);
  }
};
