// What becomes of a tile's sums in a product over n, or another fold: values are used where they are, in registers
// (bilinear_tile.cuh). Nothing of the matrix is stored.
//
//   PRODUCT  partial[range of n][e][m] = sum over the range's n of epilogue(sum of (m, n)) * v[n][e]
//   FOLD     partial[range of n][m]    = state of those values (fold.cuh)
//
// A lane has two rows and 16 of the columns of a strip of 32; at the end of a tile its quad joins, in the same order in
// every run, and shared memory keeps what a warp's 16 rows have of some tiles. Pairs that cancel are computed again
// where they stand, by the whole warp: a list would not know what their values were to be added to.

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

// A strip of 32 columns of the tile as a lane sees it: its columns are `own` + 8 j and the one after.
struct FoldStrip {
  u32 columns;  // of the tile's columns in shared memory
  int own;      // in the tile
  i64 m, n0;    // of its first row, of the tile's first column
  MERCER_METHOD bool has(const PairArguments& p, int j, int q) const { return n0 + own + 8 * j + q < p.n; }
};

// Sums become values: [j][h][q], as in sums_of_pairs.
MERCER_INLINE void values_of_strip(float (&values)[16], const float (&row_slots)[2][ROW_SLOTS + 1], const float* params,
                                   const PairArguments& p, const FoldStrip& strip) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float col_slots[2][COL_SLOTS + 1];
#pragma unroll
    for (int s = 0; s < COL_SLOTS; ++s) {
      const float2 pair = shared_pair(strip.columns + ((POINT_PLANES + s) * TILE_N + strip.own + 8 * j) * 4);
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
        values[j * 4 + h * 2 + q] = outputs[0];
      }
  }
}

#if CONSUMER == 1
// Two rows of a lane.
struct Fold {
  static constexpr bool kInParts = COLUMNS <= 4;  // sums of a strip first; of more columns they would take registers
  float sum[2][COLUMNS];
  MERCER_METHOD Fold() : sum{} {}

  // WHOLE: all 32 columns are there. Behind the last column lies what was there before.
  template <bool WHOLE>
  MERCER_METHOD void add(const float (&values)[16], const PairArguments& p, const FoldStrip& strip) {
    Fold part;
    Fold& to = kInParts ? part : *this;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool has[2] = {WHOLE || strip.has(p, j, 0), WHOLE || strip.has(p, j, 1)};
#pragma unroll
      for (int e = 0; e < COLUMNS; ++e) {
        const float2 v =
            shared_pair(strip.columns + ((POINT_PLANES + COL_SLOTS + e) * TILE_N + strip.own + 8 * j) * 4);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float* value = values + j * 4 + h * 2;
          if (has[0]) to.sum[h][e] = mul_add(value[0], v.x, to.sum[h][e]);
          if (has[1]) to.sum[h][e] = mul_add(value[1], v.y, to.sum[h][e]);
        }
      }
    }
    if (!kInParts) return;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int e = 0; e < COLUMNS; ++e) sum[h][e] += part.sum[h][e];
  }

  // The quad's rows to what shared memory keeps of the warp, [e][16 rows].
  MERCER_METHOD void keep_in(u32 kept, bool starts) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int e = 0; e < COLUMNS; ++e) {
        float total = sum[h][e] + __shfl_xor_sync(0xffffffffu, sum[h][e], 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        if (lane % 4 != 0) continue;
        const u32 place = kept + (e * 16 + lane / 4 + 8 * h) * 4;
        if (!starts) total += shared_float(place);
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(place), "f"(total) : "memory");
      }
  }

  // A range's later sums are added to the earlier ones, by the lane that stored those.
  static MERCER_METHOD void store(u32 kept, const PairArguments& p, i64 m, const Walk& walk) {
    float* partial = (float*)p.out + (i64)walk.split * p.columns * p.partial_ld;
#pragma unroll 1
    for (int at = threadIdx.x % 32; at < 16 * p.columns; at += 32) {
      if (m + at % 16 >= p.m) continue;
      float& to = partial[at / 16 * p.partial_ld + m + at % 16];
      to = walk.is_first_sum() ? shared_float(kept + at * 4) : to + shared_float(kept + at * 4);
    }
  }
};
#else
struct Fold {
  FoldState row[2];
  MERCER_METHOD Fold() : row{empty_state(), empty_state()} {}

  template <bool WHOLE>
  MERCER_METHOD void add(const float (&values)[16], const PairArguments& p, const FoldStrip& strip) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float own[8];
      bool is_there[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        own[i] = values[i / 2 * 4 + h * 2 + i % 2];
        is_there[i] = WHOLE || strip.has(p, i / 2, i % 2);
      }
      merge(row[h], state_of_all(own, is_there, strip.n0 + strip.own, 8));
    }
  }

  MERCER_METHOD void keep_in(u32 kept, bool starts) const {
    const int lane = threadIdx.x % 32;
    FoldState* states = (FoldState*)shared_pointer(kept);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      FoldState total = row[h];
      merge(total, state_of_lane(total, 1));
      merge(total, state_of_lane(total, 2));
      if (lane % 4 != 0) continue;
      FoldState& place = states[lane / 4 + 8 * h];
      if (starts)
        place = total;
      else
        merge(place, total);
    }
  }

  static MERCER_METHOD void store(u32 kept, const PairArguments& p, i64 m, const Walk& walk) {
    const int row = threadIdx.x % 32;
    if (row >= 16 || m + row >= p.m) return;
    FoldState& to = ((FoldState*)p.out)[walk.split * p.partial_ld + m + row];
    FoldState state = ((const FoldState*)shared_pointer(kept))[row];
    if (!walk.is_first_sum()) {
      const FoldState later = state;
      state = to;
      merge(state, later);
    }
    to = state;
  }
};
#endif

struct Consumer {
  template <bool WHOLE>
  MERCER_METHOD void add_tile(Fold& fold, const BilinearArguments& a, u32 columns, const float (&sum)[SUMS], i64 m,
                              i64 n0, const PointNorm (&x)[2]) const {
    const int lane = threadIdx.x % 32;
    Params own;
    if (KEEPS_PARAMS) own.load(a.pairs, 0);
    const float* params = KEEPS_PARAMS ? own.value : member_params(a.pairs, 0);
    float row_slots[2][ROW_SLOTS + 1];
#pragma unroll
    for (int h = 0; h < 2; ++h) load_row_slots(row_slots[h], a.pairs, m + lane / 4 + 8 * h);
#pragma unroll
    for (int part = 0; part < TILE_N / 32; ++part) {
      float values[16];
      const u32 mask = sums_of_pairs(values, sum + part * 16, x, columns, part * 32);
      if (__any_sync(0xffffffffu, mask != 0)) repair_pairs(values, a.pairs, m, n0 + part * 32, mask);
      const FoldStrip strip = {columns, part * 32 + lane % 4 * 2, m + lane / 4, n0};
      values_of_strip(values, row_slots, params, a.pairs, strip);
      fold.template add<WHOLE>(values, a.pairs, strip);
    }
  }

  MERCER_METHOD void take(const BilinearArguments& a, const BilinearShared& shared, const float (&sum)[SUMS], i64 m,
                          const Walk& walk, const PointNorm (&x)[2]) {
    const u32 kept = shared.values + threadIdx.x / 32 * VALUES_BYTES;
    Fold fold;
    if (walk.n0 + TILE_N <= a.pairs.n)
      add_tile<true>(fold, a, shared.columns, sum, m, walk.n0, x);
    else
      add_tile<false>(fold, a, shared.columns, sum, m, walk.n0, x);
    fold.keep_in(kept, walk.starts_sum());
    if (!walk.ends_sum()) return;
    __syncwarp();
    Fold::store(kept, a.pairs, m, walk);
    __syncwarp();
  }
};
