// Values of a tile of products, stored as an operand of the next product (docs/kernels/wide.md): in two pieces of 16
// bits (split_pieces.cuh), the points m as points, the columns n as features. A warp's 16 rows x 32 columns are 2048
// bytes in a row of that image.
//
// Pieces are of powers of two of known sizes (bilinear_values.cuh), or of f times the power of two that takes f(0) to
// 2^14 … 2^15: values from LEAST_PART f(0) on, and zeros, they carry to 2^-22 of themselves. One value that is less,
// and all are made by who keeps none.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/split_pieces.cuh"
#include "gemm/bilinear_pairs.cuh"
#include "gemm/bilinear_shared.cuh"
#include "gemm/bilinear_values.cuh"
#include "gemm/bilinear_walk.cuh"
#include "gemm/rated_floats.cuh"

#define ROW_PIECES 128  // bytes of a row in a unit of the image
#define LEAST_KEPT (LEAST_PART * 0x1p14f)
#define MOST_KEPT 60000.0f
// Bounds of f(0), and of v: what undoes the powers of two of both sides is one number.
#define MOST_AT_ZERO 0x1p20f
#define MOST_V 0x1p60f
#define LEAST_V 0x1p-80f

// Alike for all blocks of a launch, some of which may refuse meanwhile.
MERCER_INLINE bool may_be_kept(const BilinearArguments& a) {
  const PairArguments& p = a.pairs;
  const float c = fabsf(value_at_zero(p, member_params(p, 0))), v = float_of(p.split.state->most_v);
  return a.kept.state[-1].sampled == 0 && c <= MOST_AT_ZERO && c >= 1 / MOST_AT_ZERO && v <= MOST_V && v >= LEAST_V;
}
MERCER_INLINE void refuse_to_keep(const BilinearArguments& a) {
  a.pairs.split.state->rated = 0;
  a.kept.state->sampled = 1;
}

struct Consumer {
  typedef RowNorms Rows;
  static MERCER_METHOD void start(const BilinearArguments&, i64) {}
  static MERCER_METHOD void finish(const CandidateArguments&) {}

  // Into the warp's place in shared memory, as they lie in the image.
  static MERCER_METHOD void write_pieces(const float (&values)[16], u32 place) {
    // Four rows on, chunks are exchanged with those four on.
    const int lane = threadIdx.x % 32, row = quad_row(lane / 4);
    static_assert(quad_row(8) == 4, "so far apart are a lane's two rows");
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const u32 at = place + (row + 4 * h) * ROW_PIECES + lane % 4 * 4;
        u32 high, low;
        split_pair(values[j * 4 + h * 2], values[j * 4 + h * 2 + 1], high, low);
        const int chunk = j ^ 4 * h;
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(at + ((chunk ^ row & 7) << 4)), "f"(float_of(high)) : "memory");
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(at + ((chunk ^ 4 ^ row & 7) << 4)), "f"(float_of(low)) : "memory");
      }
  }

  // Copies pieces from the warp's place to the image.
  static MERCER_METHOD void store_pieces(u8* to, u32 place) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Pack<float, 4> pieces;
      shared_floats(pieces.value, place + i * 512 + threadIdx.x % 32 * 16);
      store_pack((float*)(to + i * 512), pieces);
    }
    __syncwarp();
  }

  // `make` gives the values of a strip; what factor the stored ones have is minus one by `scale`, for stored products
  // are subtracted.
  template <class Make>
  static MERCER_METHOD void store_tile(const KeptImage& kept, u32 place, i64 m, const Walk& walk, float scale,
                                       const Make& make) {
    const int lane = threadIdx.x % 32;
    if (walk.n0 == 0 && lane < 16) kept.scale[m + lane] = scale;
    const i64 first_unit = walk.n0 / MERCER_IMAGE_ROWS;
    u8* image = kept.image + (m / MERCER_IMAGE_ROWS * kept.units + first_unit) * (MERCER_IMAGE_ROWS * ROW_PIECES) +
                m % MERCER_IMAGE_ROWS * ROW_PIECES + lane * 16;
#pragma unroll
    for (int strip = 0; strip < TILE_N / 32; ++strip) {
      if (first_unit + strip >= kept.units) return;
      float values[16];
      make(values, strip);
      write_pieces(values, place);
      store_pieces(image + strip * (MERCER_IMAGE_ROWS * ROW_PIECES), place);
    }
  }

  MERCER_METHOD void take(const BilinearArguments& a, const BilinearShared& shared, const float (&sum)[SUMS], i64 m,
                          const Walk& walk, const PointNorm (&x)[2]) {
    if (m >= a.kept.rows) return;
    const PairArguments& p = a.pairs;
    const int lane = threadIdx.x % 32;
    const u32 place = shared.values + threadIdx.x / 32 * VALUES_BYTES;
    Params own;
    if (KEEPS_PARAMS) own.load(p, 0);
    const float* params = KEEPS_PARAMS ? own.value : member_params(p, 0);
    const float at_zero = value_at_zero(p, params);
    const bool allowed = is_all_allowed(p, params);
    RatedRows rows;
    rows.start(x, params, at_zero);
    if (allowed && rows.rate < 0) {
      const auto make = [&](float (&values)[16], int strip) {
        float most[2];
        rows.exponents(values, most, sum + strip * 16, PlaneNorms{shared.columns, strip * 32});
        rows.raise(values);
      };
      return store_tile(a.kept, place, m, walk, -at_zero * power_of_two(-VALUE_EXPONENT), make);
    }
    const bool whole = walk.n0 + TILE_N <= p.n;
    const int exponent = piece_exponent(fabsf(at_zero));
    const float up = power_of_two(exponent), row_slots[2][ROW_SLOTS + 1] = {};
    float least = INFINITY, most = 0;
    const auto make = [&](float (&values)[16], int strip) {
      const FoldStrip columns = {shared.columns, strip * 32 + lane % 4 * 2, m + lane / 4, walk.n0};
      strip_values(values, sum + strip * 16, x, p, columns, m, strip * 32, row_slots, params, allowed);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        values[i] = whole || columns.has(p, i / 4, i % 2) ? values[i] * up : 0.0f;
        most = max_nan(most, fabsf(values[i]));
        least = fminf(least, values[i] != 0 ? fabsf(values[i]) : INFINITY);
      }
    };
    store_tile(a.kept, place, m, walk, -power_of_two(-exponent), make);
    if (!(most <= MOST_KEPT) || least < LEAST_KEPT) refuse_to_keep(a);
  }
};
