// What becomes of a tile's sums in a product over n: values times COLUMNS of v, added up where they are, in registers
// (bilinear_tile.cuh). Nothing of the matrix is stored.
//
//   partial[range of n][e][m] = sum over the range's n of epilogue(sum of (m, n)) * v[n][e]
//
// A lane has two rows and 16 of the columns of a strip of 32; at the end of a tile its quad adds up, in the same order
// in every run, and shared memory keeps a warp's 16 x COLUMNS sums until the range ends. Pairs that cancel are computed
// again where they stand, by the whole warp: a list would not know what their values were to be added to.

// Of a warp's 16 x 32 pairs those with a bit in `mask` (the last pair lowest), from the values themselves.
MERCER_INLINE void repair_pairs(float (&values)[16], const PairArguments& p, i64 m, i64 n, u32 mask) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (u32 owners = __ballot_sync(0xffffffffu, mask != 0); owners; owners = __ballot_sync(0xffffffffu, mask != 0)) {
    const int owner = __ffs(owners) - 1, pair = __shfl_sync(0xffffffffu, 16 - __ffs(mask), owner);
    const i64 row = m + owner / 4 + (pair & 2 ? 8 : 0), column = n + pair / 4 * 8 + owner % 4 * 2 + pair % 2;
    const float sum = row < p.m && column < p.n ? (float)direct_sum<1>(p, row, column) : 0.0f;
    if (lane != owner) continue;
    mask &= mask - 1;
#pragma unroll
    for (int i = 0; i < 16; ++i)
      if (i == pair) values[i] = sum;
  }
}

struct Consumer {
  u32 sums;  // address of the warp's
  // The lane's pairs of columns [column, column + 32) of the tile, added to `rows`.
  template <bool WHOLE>
  MERCER_METHOD void add_part(float (&rows)[2][COLUMNS], const float (&values)[16], const PairArguments& p, u32 columns,
                              int column, i64 m, i64 n0) const {
    const int lane = threadIdx.x % 32;
    const float* params = params_of(p, 0);
    float row_slots[2][ROW_SLOTS + 1];
#pragma unroll
    for (int h = 0; h < 2; ++h) load_row_slots(row_slots[h], p, m + lane / 4 + 8 * h);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int own = column + j * 8 + lane % 4 * 2;
      float col_slots[2][COL_SLOTS + 1], results[2][2];
#pragma unroll
      for (int s = 0; s < COL_SLOTS; ++s) {
        const float2 pair = shared_pair(columns + ((POINT_PLANES + s) * TILE_N + own) * 4);
        col_slots[0][s] = pair.x;
        col_slots[1][s] = pair.y;
      }
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          REAL outputs[OUTPUTS];
          epilogue(outputs, &values[j * 4 + h * 2 + q], row_slots[h], col_slots[q], params,
                   (REAL)(m + lane / 4 + 8 * h + p.i_offset), (REAL)(n0 + own + q + p.j_offset), (REAL)p.features);
          results[h][q] = outputs[0];
        }
#pragma unroll
      for (int e = 0; e < COLUMNS; ++e) {
        float2 v = shared_pair(columns + ((POINT_PLANES + COL_SLOTS + e) * TILE_N + own) * 4);
        // Behind the last column lies what was there before.
        if (!WHOLE && n0 + own >= p.n) v.x = 0;
        if (!WHOLE && n0 + own + 1 >= p.n) v.y = 0;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float first = WHOLE || n0 + own < p.n ? results[h][0] : 0.0f;
          const float second = WHOLE || n0 + own + 1 < p.n ? results[h][1] : 0.0f;
          rows[h][e] = mul_add(second, v.y, mul_add(first, v.x, rows[h][e]));
        }
      }
    }
  }

  template <bool WHOLE>
  MERCER_METHOD void add_tile(float (&rows)[2][COLUMNS], const BilinearArguments& a, u32 columns,
                              const float (&sum)[SUMS], i64 m, i64 n0, const PointNorm (&x)[2]) const {
#pragma unroll
    for (int part = 0; part < TILE_N / 32; ++part) {
      float values[16], rows_of_part[2][COLUMNS] = {};
      const u32 mask = sums_of_pairs(values, sum + part * 16, x, columns, part * 32);
      if (__any_sync(0xffffffffu, mask != 0)) repair_pairs(values, a.pairs, m, n0 + part * 32, mask);
      add_part<WHOLE>(rows_of_part, values, a.pairs, columns, part * 32, m, n0);
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int e = 0; e < COLUMNS; ++e) rows[h][e] += rows_of_part[h][e];
    }
  }

  MERCER_METHOD u32 place(int row, int e) const { return sums + (e * 16 + row) * 4; }

  MERCER_METHOD void take(const BilinearArguments& a, const BilinearShared& shared, const float (&sum)[SUMS], i64 m,
                          const Walk& walk, const PointNorm (&x)[2]) {
    const int lane = threadIdx.x % 32;
    sums = shared.values + threadIdx.x / 32 * VALUES_BYTES;
    float rows[2][COLUMNS] = {};
    if (walk.n0 + TILE_N <= a.pairs.n)
      add_tile<true>(rows, a, shared.columns, sum, m, walk.n0, x);
    else
      add_tile<false>(rows, a, shared.columns, sum, m, walk.n0, x);
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int e = 0; e < COLUMNS; ++e) {
        float total = rows[h][e] + __shfl_xor_sync(0xffffffffu, rows[h][e], 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        if (lane % 4 != 0) continue;
        const u32 kept = place(lane / 4 + 8 * h, e);
        if (!walk.starts_range()) total += shared_float(kept);
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(kept), "f"(total) : "memory");
      }
    if (walk.ends_range()) store_rows(a.pairs, m, walk.split);
  }

  MERCER_METHOD void store_rows(const PairArguments& p, i64 m, int split) const {
    float* partial = (float*)p.out + (i64)split * p.columns * p.partial_ld;
    __syncwarp();
#pragma unroll 1
    for (int at = threadIdx.x % 32; at < 16 * p.columns; at += 32)
      if (m + at % 16 < p.m) partial[at / 16 * p.partial_ld + m + at % 16] = shared_float(place(at % 16, at / 16));
    __syncwarp();
  }
};
