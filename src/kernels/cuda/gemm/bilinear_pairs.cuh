// From the sums of a tile of products to the sums of its pairs (bilinear_tile.cuh).
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/split_precision.cuh"
#include "gemm/bilinear_shared.cuh"
#include "pairs/pair_params.cuh"

MERCER_INLINE void load_row_slots(float (&slots)[ROW_SLOTS + 1], const PairArguments& p, i64 m) {
#pragma unroll
  for (int s = 0; s < ROW_SLOTS; ++s) slots[s] = ((const float*)p.x.user)[s * p.x.ld + (m < p.m ? m : p.m - 1)];
}
// Parameters of a member of a batch (of the only one, where nothing is stored).
MERCER_INLINE const float* member_params(const PairArguments& p, i64 member) {
  return params_of(p, NUMBERS ? 0 : batch_offset(p.members.axes, p.members.item_step, member));
}
// Few parameters are kept in registers, for after every store the compiler would read them again.
#define KEEPS_PARAMS (!NUMBERS && PARAMS <= 8)
struct Params {
  float value[KEEPS_PARAMS ? PARAMS + 1 : 1];
  MERCER_METHOD void load(const PairArguments& p, i64 member) {
    const float* params = member_params(p, member);
#pragma unroll
    for (int i = 0; KEEPS_PARAMS && i < PARAMS; ++i) value[i] = params[i];
  }
};

struct PointNorm {
  float norm, tail, scale;
};
// What a consumer of sums knows of a lane's rows, unless it says otherwise.
typedef PointNorm RowNorms[2];

// |x - z|^2 of a pair, and in the sign of `test` whether it cancels; of a product, x · z and whether pieces carry it.
MERCER_INLINE float pair_sum(float sum, const PointNorm& x, const PointNorm& z, float& test) {
  const float scale = x.scale * z.scale, norms = x.norm + z.norm;
  if (!SQUARES) {
    test = norms;
    return FACTOR * (scale * sum);
  }
  // Where one point is far, the norms of all others are tails alone.
  const float tails = x.tail + z.tail, square = mul_add(scale, sum, norms) + tails;
  test = mul_add(-CANCELS_BELOW, norms + tails, square);
  // Below zero it cancels, and is computed again; but for who only subtracts.
  return FACTOR * (SUBTRACTS ? fmaxf(square, 0.0f) : square);
}

// The scale gives back what truncation took from sums on average, TRUNCATED of them.
MERCER_INLINE PointNorm norm_of(const BilinearArguments& a, i64 m) {
  const i64 at = m < a.x_end ? m : a.x_end - 1;
  return {a.x.norm[at], a.x.norm_tail[at], a.x.scale[at] * (SQUARES ? -2.0f : 1.0f) * (1.0f + TRUNCATED)};
}

// A lane has two of 16 rows and four of 16 columns. Where pairs are stored these columns are neighbours, for images
// have their points in another order (quad_row).
MERCER_INLINE int own_row(int h) {
  const int lane = threadIdx.x % 32;
  return QUADS ? lane / 8 * 4 + lane / 4 % 2 + 2 * h : lane / 4 + 8 * h;
}
// The first of two neighbours.
MERCER_INLINE int own_column(int j) {
  const int quarter = threadIdx.x % 4;
  return QUADS ? j / 2 * 16 + quarter * 4 + j % 2 * 2 : j * 8 + quarter * 2;
}

// Norms of a lane's rows; those of the warp begin at m.
MERCER_INLINE void load_norms(PointNorm (&x)[2], const BilinearArguments& a, i64 m) {
#pragma unroll
  for (int h = 0; h < 2; ++h) x[h] = norm_of(a, m + own_row(h));
}

// What the epilogue knows of the columns of a strip of 32 from `column` on: a block of the image, whose columns share a
// scale unless each has its OWN_SCALES.
struct ColumnNorms {
  float2 norms[4], tails[4], scales[4];
  MERCER_METHOD ColumnNorms(u32 columns, int column) {
    const auto place = [&](int plane, int own) { return columns + (plane * PLANE_ROW + column + own) * 4; };
    load(norms, place(0, own_column(0)));
    load(tails, place(1, own_column(0)));
    if (OWN_SCALES) load(scales, place(2, own_column(0)));
    const float scale = OWN_SCALES ? 0.0f : shared_float(place(2, 0));
#pragma unroll
    for (int j = 0; !OWN_SCALES && j < 4; ++j) scales[j] = {scale, scale};
  }
  static MERCER_METHOD void load(float2 (&values)[4], u32 address) {
    if constexpr (QUADS) {
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        float quad[4];
        shared_floats(quad, address + (own_column(j) - own_column(0)) * 4);
        values[j] = {quad[0], quad[1]};
        values[j + 1] = {quad[2], quad[3]};
      }
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) values[j] = shared_pair(address + (own_column(j) - own_column(0)) * 4);
    }
  }
  MERCER_METHOD PointNorm at(int j, int q) const {
    return q ? PointNorm{norms[j].y, tails[j].y, scales[j].y} : PointNorm{norms[j].x, tails[j].x, scales[j].x};
  }
};

// The 16 sums that a lane has of a warp's 16 x 32 pairs, from column `column` of the tile on, and the signs of their
// tests, the last one lowest: [j][h][q] is row own_row(h) and column own_column(j) + q.
MERCER_INLINE u32 sums_of_pairs(float (&values)[16], const float* sum, const PointNorm (&x)[2], u32 columns,
                                int column) {
  const ColumnNorms z(columns, column);
  u32 mask = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j)
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        float test;
        values[j * 4 + h * 2 + q] = pair_sum(sum[j * 4 + h * 2 + q], x[h], z.at(j, q), test);
        mask = __funnelshift_l(bits_of(test), mask, 1);
      }
  return mask;
}
