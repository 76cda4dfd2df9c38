// Sums of a tile of products become values where they are, in registers: for what stores no pairs (bilinear_fold.cuh,
// bilinear_candidates.cuh). A lane has two rows and 16 of the columns of a strip of 32.

// Of a warp's 16 x 32 pairs those with a bit in `mask` (the last pair lowest), one after the other, by the whole warp:
// values[pair] = make(row, column, pair), where that pair is there.
template <class Make>
MERCER_INLINE void for_pairs(float (&values)[16], const PairArguments& p, i64 m, i64 n, u32 mask, const Make& make) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (u32 owners = __ballot_sync(0xffffffffu, mask != 0); owners; owners = __ballot_sync(0xffffffffu, mask != 0)) {
    const int owner = __ffs(owners) - 1, pair = __shfl_sync(0xffffffffu, 16 - __ffs(mask), owner);
    const i64 row = m + owner / 4 + (pair & 2 ? 8 : 0), column = n + pair / 4 * 8 + owner % 4 * 2 + pair % 2;
    const float value = row < p.m && column < p.n ? make(row, column, pair, owner) : 0.0f;
    if (lane != owner) continue;
    mask &= mask - 1;
#pragma unroll
    for (int i = 0; i < 16; ++i)
      if (i == pair) values[i] = value;
  }
}

// Their sums from the values themselves; which of them are out of range.
MERCER_INLINE u32 repair_pairs(float (&values)[16], const PairArguments& p, i64 m, i64 n, u32 mask) {
  u32 far = 0;
  for_pairs(values, p, m, n, mask, [&](i64 row, i64 column, int pair, int owner) {
    const float sum = (float)direct_sum<1>(p, row, column);
#if GUARDED
    if (threadIdx.x % 32 == owner && is_out_of_range(&sum)) far |= 1u << (15 - pair);
#endif
    return sum;
  });
  return far;
}

#if GUARDED
// In place of `own`, which stands where points are equal.
static __device__ __noinline__ float safe_value(float own, const PairArguments& p, i64 m, i64 n) {
  if (are_equal<GUARD_LANES>(p, {m, n, 0, 0})) return own;
  REAL outputs[OUTPUTS];
  safe_values<GUARD_LANES>(outputs, p, params_of(p, 0), {m, n, 0, 0});
#if SUMS_DECIDE
  return sum_key(own, outputs[0]);
#else
  return outputs[0];
#endif
}
// The values of such pairs.
MERCER_INLINE void take_safe_values(float (&values)[16], const PairArguments& p, i64 m, i64 n, u32 far) {
  if (!__any_sync(0xffffffffu, far != 0)) return;
  for_pairs(values, p, m, n, far, [&](i64 row, i64 column, int pair, int owner) {
    float own = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i)
      if (i == pair) own = values[i];
    return safe_value(__shfl_sync(0xffffffffu, own, owner), p, row, column);
  });
}
#endif

// A strip of 32 columns of the tile as a lane sees it: its columns are `own` + 8 j and the one after.
struct FoldStrip {
  u32 columns;  // of the tile's columns in shared memory
  int own;      // in the tile
  i64 m, n0;    // of its first row, of the tile's first column
  MERCER_METHOD bool has(const PairArguments& p, int j, int q) const { return n0 + own + 8 * j + q < p.n; }
};

struct NoFurther {
  MERCER_METHOD void operator()(int, const REAL (&)[OUTPUTS]) const {}
};
// Sums become values: [j][h][q], as in sums_of_pairs. further(place, outputs): of those behind the first one.
template <class Further = NoFurther>
MERCER_INLINE void values_of_strip(float (&values)[16], const float (&row_slots)[2][ROW_SLOTS + 1], const float* params,
                                   const PairArguments& p, const FoldStrip& strip, const Further& further = {}) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float col_slots[2][COL_SLOTS + 1];
#pragma unroll
    for (int s = 0; s < COL_SLOTS; ++s) {
      const float2 pair = shared_pair(strip.columns + ((POINT_PLANES + s) * PLANE_ROW + strip.own + 8 * j) * 4);
      col_slots[0][s] = pair.x;
      col_slots[1][s] = pair.y;
    }
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        REAL outputs[OUTPUTS];
        epilogue(outputs, &values[j * 4 + h * 2 + q], row_slots[h], col_slots[q], params,
                 (REAL)(strip.m + 8 * h + p.i_offset), (REAL)(strip.n0 + strip.own + 8 * j + q + p.j_offset),
                 (REAL)p.features);
        further(j * 4 + h * 2 + q, outputs);
        values[j * 4 + h * 2 + q] = outputs[0];
      }
  }
}

#if HAS_ALLOWANCE
MERCER_INLINE bool is_all_allowed(const PairArguments& p, const float* params) {
  const float norms = float_of(p.split->most_norm[0]) + float_of(p.split->most_norm[1]);
  return fabsf(FACTOR) * NORMS_LOSE * norms <= PRODUCTS_MAY_LOSE * allowance(params);
}

// The 16 values of a strip without tests, as in sums_of_pairs.
MERCER_INLINE void allowed_sums(float (&values)[16], const float* sum, const PointNorm (&x)[2], u32 columns,
                                int column) {
  const float norms[2] = {x[0].norm + x[0].tail, x[1].norm + x[1].tail};
  const ColumnNorms z(columns, column);
#pragma unroll
  for (int j = 0; j < 4; ++j)
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const PointNorm own = z.at(j, q);
      const float norm = own.norm + own.tail;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int i = j * 4 + h * 2 + q;
        values[i] = FACTOR * mul_add(x[h].scale * own.scale, sum[i], norms[h] + norm);
      }
    }
}
#else
MERCER_INLINE bool is_all_allowed(const PairArguments&, const float*) { return false; }
#endif

#if HAS_ALLOWANCE && BRIEF == 1
// Of the pairs that cancel, those whose norms are not small beside what values may lose. Of more than 32 features few
// cancel. One pair after the other: unrolled it took registers from all strips.
MERCER_INLINE u32 not_allowed(u32 mask, const PointNorm (&x)[2], u32 columns, int column, const float* params) {
  const float most = PRODUCTS_MAY_LOSE * allowance(params) / (fabsf(FACTOR) * NORMS_LOSE);
  const float rows[2] = {x[0].norm + x[0].tail, x[1].norm + x[1].tail};
#pragma unroll 1
  for (u32 left = mask; left != 0; left &= left - 1) {
    const int pair = 16 - __ffs(left), own = column + own_column(pair / 4) + pair % 2;
    const float norm = shared_float(columns + own * 4), tail = shared_float(columns + (PLANE_ROW + own) * 4);
    const float norms = (pair / 2 % 2 == 0 ? rows[0] : rows[1]) + (norm + tail);
    if (norms >= 0 && norms <= most) mask &= ~(left & -left);
  }
  return mask;
}
#else
MERCER_INLINE u32 not_allowed(u32 mask, const PointNorm (&)[2], u32, int, const float*) { return mask; }
#endif

#if RATED == 1 || KEEPS
MERCER_INLINE float value_at_zero(const PairArguments& p, const float* params) {
  REAL outputs[OUTPUTS];
  const float sum = 0, slots[ROW_SLOTS + COL_SLOTS + 1] = {};
  epilogue(outputs, &sum, slots, slots, params, 0, 0, (REAL)p.features);
  return outputs[0];
}
#endif

#if RATED == 1
// Where values are f = c 2^(rate |x - z|^2), powers of two alone are multiplied with v, and sums over n with c = f(0):
// sums of 2^30 terms stay finite where c and v are at most MOST_FACTOR. What needs no test is close: two points no
// farther apart than norms allow have a power of 2^-7 at least, and times 2^VALUE_EXPONENT pieces of 16 bits carry it
// to 2^-22 of itself (wide_fold.cuh), while its exponent is small and rounded little. Every 32 points share a power of
// two of v, so pieces of v lose 2^-39 of the largest of these: of the sum of the products' magnitudes, 2^-27.
#define MOST_FACTOR 0x1p60f
MERCER_INLINE bool rate_stands(const PairArguments& p) {
  const float* params = member_params(p, 0);
  const float c = fabsf(value_at_zero(p, params));
  return is_all_allowed(p, params) && rate_of_squares(params) < 0 && c <= MOST_FACTOR && c >= 1 / MOST_FACTOR &&
         float_of(p.split->most_v) <= MOST_FACTOR;
}
#endif

#if HAS_RATE
// Norms of a strip of 32 columns and their scale, as they come with v: a column that there is not has an infinite one.
struct StageNorms {
  u32 columns;
  MERCER_METHOD float scale() const { return shared_float(columns + 32 * 4); }
  MERCER_METHOD float2 pair(int own) const { return shared_pair(columns + own * 4); }
};
// The same from the planes of a tile, where all columns are taken for points.
struct PlaneNorms {
  u32 columns;
  int first;
  MERCER_METHOD float scale() const { return shared_float(columns + (2 * PLANE_ROW + first) * 4); }
  MERCER_METHOD float2 pair(int own) const {
    const float2 norm = shared_pair(columns + (first + own) * 4);
    const float2 tail = shared_pair(columns + (PLANE_ROW + first + own) * 4);
    return {norm.x + tail.x, norm.y + tail.y};
  }
};

// Of a lane's rows, the rate in their norms and scales.
struct RatedRows {
  float rate, norms[2], scales[2];
  MERCER_METHOD void start(const PointNorm (&x)[2], const float* params) {
    rate = rate_of_squares(params);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      norms[h] = mul_add(rate, x[h].norm + x[h].tail, VALUE_EXPONENT);
      scales[h] = rate * x[h].scale;
    }
  }
  // The powers of two of a strip whose sums need no test, as in sums_of_pairs.
  template <class Norms>
  MERCER_METHOD void values(float (&values)[16], const float* sum, const Norms& columns) const {
    const float of_columns = columns.scale();
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 z = columns.pair(8 * j + threadIdx.x % 4 * 2);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = j * 4 + i;
        const float row = mul_add(scales[i / 2] * of_columns, sum[at], norms[i / 2]);
        values[at] = exp2_unit(mul_add(rate, i % 2 == 0 ? z.x : z.y, row));
      }
    }
  }
};
MERCER_INLINE void load_norms(RatedRows& rows, const BilinearArguments& a, i64 m) {
  PointNorm x[2];
  load_norms(x, a, m);
  rows.start(x, member_params(a.pairs, 0));
}
#endif

// The values of a strip from its sums; pairs that cancel are computed again where that matters.
template <class Further = NoFurther>
MERCER_INLINE void strip_values(float (&values)[16], const float* sum, const PointNorm (&x)[2], const PairArguments& p,
                                const FoldStrip& strip, i64 m, int column, const float (&row_slots)[2][ROW_SLOTS + 1],
                                const float* params, bool allowed, const Further& further = {}) {
  u32 far = 0;
  if (allowed) {
#if HAS_ALLOWANCE
    allowed_sums(values, sum, x, strip.columns, column);
#endif
  } else {
    u32 mask = sums_of_pairs(values, sum, x, strip.columns, column);
    if (__any_sync(0xffffffffu, mask != 0)) {
      mask = not_allowed(mask, x, strip.columns, column, params);
      far = repair_pairs(values, p, m, strip.n0 + column, mask);
    }
  }
  values_of_strip(values, row_slots, params, p, strip, further);
#if GUARDED
  take_safe_values(values, p, m, strip.n0 + column, far);
#endif
}
