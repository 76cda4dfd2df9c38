// Products over n with many columns of v, on tensor cores of compute capability 9.0: values of a tile are left operands
// where they are, in registers, in two pieces of tf32.
//
//   total[m][e] += sum over 32 columns n of value[m][n] * v[n][e]        WIDE columns e: WIDE / 2 sums a thread
//
// A lane has two neighbours of eight columns of the tile, 2 c and 2 c + 1: k = c and c + 4 of the product. The image of
// v follows that order (wide_operands.cuh); the feeding warp brings it in stages of 32 columns. The values are those of
// bilinear_tile.cuh or of wide_tile.cuh.
//
// Tensor cores truncate what they accumulate, at every instruction, so sums of 32 columns start at zero, small products
// first, and are added up in float32.
//
// EXTRA: as many columns more of the image are multiplied with a second value of the pairs (rank_field.cuh). Its
// pieces are needed no longer than until those of the first one are made.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/warpgroups.cuh"
#include "gemm/bilinear_walk.cuh"
#include "gemm/wide_pieces.cuh"

#define EXTRA_SUMS (EXTRA > 0 ? EXTRA / 2 : 1)

template <class Shared>
struct WideSums {
  float total[WIDE / 2];
  // EXTRA alone has these.
  float extra[16];  // second values of the strip, which `make` gives too
  float extra_total[EXTRA_SUMS];
  Ring<V_STAGES> ring;

  MERCER_METHOD WideSums() : ring{0, 0} {}

  // Adds a tile; make(values, strip, stage) gives 16 values of the strip whose v lies in the stage, 0 where there is no
  // column. Rows m and m + 8. Sums are stored times factor(0 or 1, their row).
  template <class Make, class Factor>
  MERCER_METHOD void add_tile(const BilinearArguments& a, const Shared& shared, i64 m, const Walk& walk,
                              const Make& make, const Factor& factor) {
    if (walk.starts_sum()) {
#pragma unroll
      for (int i = 0; i < WIDE / 2; ++i) total[i] = 0;
#pragma unroll
      for (int i = 0; i < EXTRA / 2; ++i) extra_total[i] = 0;
    }
    Pieces pieces;
    float part[WIDE / 2];
    int before = 0;  // the strip's stage
#pragma unroll
    for (int strip = 0; strip < TILE_N / 32; ++strip) {
      float values[16];
      const int stage = ring.stage;
      if (Shared::NORMS_WITH_V) barrier_wait(shared.v_full(stage), ring.parity);
      make(values, strip, stage);
      // The products of the strip before were on their way meanwhile.
      if (strip > 0) end(part, pieces, shared, before);
      Pieces own;
      float own_part[EXTRA_SUMS];
      if constexpr (EXTRA > 0) {
        barrier_wait(shared.v_full(stage), ring.parity);
        own.split(extra);
        begin(own_part, own, shared, stage, WIDE);
        pieces.split(values);
      } else {
        pieces.split(values);
        if (!Shared::NORMS_WITH_V) barrier_wait(shared.v_full(stage), ring.parity);
      }
      ring.advance();
      begin(part, pieces, shared, stage, 0);
      if constexpr (EXTRA > 0) {
        products_wait<1>();
        add(extra_total, own_part, own, shared, stage, WIDE);
      }
      before = stage;
    }
    end(part, pieces, shared, before);
    if (!walk.ends_sum()) return;
    store_sums(a.pairs, m, walk, total, factor);
    if constexpr (EXTRA > 0) {
      float* const to = a.extra + (i64)walk.split * a.extra_columns * a.pairs.out.partial_ld;
      store_columns(to, a.extra_columns, a.pairs, m, walk, extra_total, [](int, i64) { return 1.0f; });
    }
  }

  // Numbers after the pieces: of halves the columns' powers of two, and the norms of the points.
  static MERCER_METHOD u32 numbers_of(const Shared& shared, int stage) {
    return shared.v + stage * V_STAGE_BYTES + V_STEPS * V_STEP_BYTES;
  }
  static MERCER_METHOD u32 norms_of(const Shared& shared, int stage) {
    return numbers_of(shared, stage) + (HALVES ? WIDE * 4 : 0);
  }

  // Begins the products of the columns from `first` on.
  template <int COUNT>
  static MERCER_METHOD void begin(float (&part)[COUNT], const Pieces& pieces, const Shared& shared, int stage,
                                  int first) {
    const u64 v = v_descriptor(shared.v + stage * V_STAGE_BYTES + first * 16);
    const auto step = [&](int j, int piece) {
      return descriptor_at<Shared::UNIFORM_STAGES>(v, j * V_STEP_BYTES + piece * V_PIECE_BYTES);
    };
#pragma unroll
    for (int i = 0; i < COUNT; ++i) keep(part[i]);
    products_fence();
#pragma unroll
    for (int j = 0; j < V_STEPS; ++j) wide_product(part, pieces.high[j], step(j, 1), j > 0);
#pragma unroll
    for (int j = 0; j < V_STEPS; ++j) wide_product(part, pieces.low[j], step(j, 0), 1);
#pragma unroll
    for (int j = 0; j < V_STEPS; ++j) wide_product(part, pieces.high[j], step(j, 0), 1);
    products_commit();
  }

  MERCER_METHOD void end(float (&part)[WIDE / 2], const Pieces& pieces, const Shared& shared, int stage) {
    products_wait<0>();
    if constexpr (HALVES) {
#pragma unroll
      for (int i = 0; i < WIDE / 2; ++i) keep(part[i]);
      const u32 scales = numbers_of(shared, stage) + threadIdx.x % 4 * 8;
#pragma unroll
      for (int i = 0; i < WIDE / 2; i += 4) {
        const float2 scale = shared_pair(scales + i * 8);
#pragma unroll
        for (int h = i; h < i + 4; h += 2) {
          total[h] = mul_add(part[h], scale.x, total[h]);
          total[h + 1] = mul_add(part[h + 1], scale.y, total[h + 1]);
        }
      }
      async_fence();
    } else {
      add(total, part, pieces, shared, stage, 0);
      if (Shared::NORMS_WITH_V) async_fence();
    }
    __syncwarp();
    if (threadIdx.x % 32 < CLUSTER) release_v(shared, stage);
  }

  template <int COUNT>
  static MERCER_METHOD void add(float (&total)[COUNT], float (&part)[COUNT], const FloatPieces& pieces,
                                const Shared& shared, int stage, int first) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) keep(part[i]);
    float test[4] = {};  // NaN where a sum is not finite; four, for each waits for itself
#pragma unroll
    for (int i = 0; i < COUNT; ++i) test[i % 4] = mul_add(part[i], 0.0f, test[i % 4]);
    const float all = test[0] + test[1] + (test[2] + test[3]);
    // Pieces make NaN of infinities.
    if (__any_sync(0xffffffffu, all != all)) {
      add_each(part, pieces, shared.v + stage * V_STAGE_BYTES + first * 16);
      async_fence();
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) total[i] += part[i];
  }

  static MERCER_METHOD void release_v(const Shared& shared, int stage) {
    if (CLUSTER > 1)
      arrive_at(shared.v_empty(stage), threadIdx.x % 32);
    else
      barrier_arrive(shared.v_empty(stage));
  }

  // Blocks of 8 columns x 16 bytes lie one after the other, the halves of k after them.
  static MERCER_METHOD u64 v_descriptor(u32 stage) {
    return (u64)(128 / 16) << 32 | (u64)V_COLUMNS << 16 | (u64)((stage & 0x3ffff) >> 4);
  }

  // The sums of `part` again, without products of matrices.
  template <int COUNT>
  static MERCER_METHOD void add_each(float (&part)[COUNT], const FloatPieces& pieces, u32 first) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int e = 0; e < 2 * COUNT; ++e) {
      float sum[2] = {};
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          const u32 place = first + j * V_STEP_BYTES + q * (V_COLUMNS * 16) + e * 16 + lane % 4 * 4;
          const float high = shared_float(place);
          const float v = fabsf(high) < INFINITY ? high + shared_float(place + V_PIECE_BYTES) : high;
#pragma unroll
          for (int h = 0; h < 2; ++h) sum[h] = mul_add(pieces.value(j, h, q), v, sum[h]);
        }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
#pragma unroll
        for (int i = 0; i < COUNT / 2; ++i)
          if (e == i / 2 * 8 + lane % 4 * 2 + i % 2) part[i / 2 * 4 + h * 2 + i % 2] = sum[h];
      }
    }
  }
};

// A block of the cluster fetches its part of each 32 columns' v for all.
template <class Shared>
MERCER_INLINE void feed_v(const BilinearArguments& a, const Shared& shared, Ring<V_STAGES>& ring, i64 n0, int rank) {
  constexpr int kPart = V_STAGE_BYTES / CLUSTER;
#pragma unroll 1
  for (int strip = 0; strip < TILE_N / 32; ++strip) {
    const u32 full = shared.v_full(ring.stage), to = shared.v + ring.stage * V_STAGE_BYTES + rank * kPart;
    const u8* from = a.v_image + (n0 / 32 + strip) * V_STAGE_BYTES + rank * kPart;
    barrier_await(shared.v_empty(ring.stage), ring.parity ^ 1);
    barrier_expect(full, V_STAGE_BYTES);
    if (CLUSTER > 1)
      copy_bulk_to_all(to, from, kPart, full);
    else
      copy_bulk(to, from, kPart, full);
    ring.advance();
  }
}
