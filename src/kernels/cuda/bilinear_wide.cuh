// Values of a tile of products, times many columns of v (wide_fold.cuh).
//
// SPREADS: their squares times the shares of the columns are added up. WEIGHS: before, they are multiplied with the sums
// of other products, or a matrix (rank_field.cuh). FURTHER: so are further values, which are added up times a plane's.
// BESIDE: the value behind those is multiplied with columns of its own.
#define WEIGHS (WEIGHT_UNITS > 0 || WEIGHT_MATRIX)
struct Consumer {
  WideSums<BilinearShared> sums;
#if WEIGHS
  float weights[SUMS];
#endif
#if WEIGHT_MATRIX
  float weights_scale;
#endif
#if SPREADS
  float spread[2];  // rows m and m + 8
  bool allowed;                    // no sum of values needs a test
  float further[FURTHER + 1][2];

#if WEIGHS
  MERCER_METHOD float weight(int strip, int place) const {
#if WEIGHT_MATRIX
    return weights[strip * 16 + place] * weights_scale;
#else
    return weights[strip * 16 + place];
#endif
  }
#endif
  MERCER_METHOD void weigh(float (&values)[16], int strip) {
#if WEIGHS
#pragma unroll
    for (int i = 0; i < 16; ++i) values[i] *= weight(strip, i);
#endif
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
    store_rows(a.spread + walk.split * a.pairs.partial_ld, spread, a, m, walk);
#pragma unroll
    for (int f = 0; f < FURTHER; ++f)
      store_rows(a.further + (walk.split * FURTHER + f) * a.pairs.partial_ld, further[f], a, m, walk);
  }
  // Of the strip's pair `place`, which counts if it is there.
  MERCER_METHOD void add_further(float (&sums)[FURTHER + 1][2], int place, const REAL (&outputs)[OUTPUTS], int strip,
                                 const FoldStrip& columns, bool is_there) const {
    if (FURTHER == 0 || !is_there) return;
    const int plane = (POINT_PLANES + COL_SLOTS + 1) * PLANE_ROW;
    float times = shared_float(columns.columns + (plane + columns.own + place / 4 * 8 + place % 2) * 4);
#if WEIGHS
    times *= weight(strip, place);
#endif
#pragma unroll
    for (int f = 0; f < FURTHER; ++f) {
      float& sum = sums[f][place / 2 % 2];
      sum = mul_add(outputs[1 + f], times, sum);
    }
  }
#endif

#if WEIGHT_MATRIX
  // Those of the tile's pairs in the order of its sums, asked for before these are waited for. Behind the last row and
  // column they repeat.
  MERCER_METHOD void load_weights(const BilinearArguments& a, i64 m, i64 n0) {
    const PairArguments& p = a.pairs;
    const int lane = threadIdx.x % 32;
    weights_scale = *a.weights_scale;
    const float* rows[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const i64 row = m + lane / 4 + 8 * h;
      rows[h] = a.weights + (row < p.m ? row : p.m - 1) * a.weights_row;
    }
#pragma unroll
    for (int j = 0; j < TILE_N / 8; ++j)
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        const i64 n = n0 + j * 8 + lane % 4 * 2 + q, at = (n < p.n ? n : p.n - 1) * a.weights_column;
#pragma unroll
        for (int h = 0; h < 2; ++h) weights[j * 4 + h * 2 + q] = load_constant(rows[h] + at);
      }
  }
#endif

  static MERCER_METHOD void start(const BilinearArguments&, i64) {}
  static MERCER_METHOD void finish(const CandidateArguments&) {}

#if RATED == 1
  MERCER_METHOD void take(const BilinearArguments& a, const BilinearShared& shared, const float (&sum)[SUMS], i64 m,
                          const Walk& walk, const RatedRows& x) {
    const PairArguments& p = a.pairs;
    const auto make = [&](float (&values)[16], int strip, int stage) {
      x.values(values, sum + strip * 16, StageNorms{sums.numbers_of(shared, stage) + WIDE * 4});
    };
    sums.add_tile(a, shared, m + threadIdx.x % 32 / 4, walk, make,
                  [&] { return value_at_zero(p, member_params(p, 0)); });
  }
#else
  MERCER_METHOD void take(const BilinearArguments& a, const BilinearShared& shared, const float (&sum)[SUMS], i64 m,
                          const Walk& walk, const PointNorm (&x)[2]) {
    const PairArguments& p = a.pairs;
    const int lane = threadIdx.x % 32;
    Params own;
    if (KEEPS_PARAMS) own.load(p, 0);
    const float* params = KEEPS_PARAMS ? own.value : member_params(p, 0);
    float row_slots[2][ROW_SLOTS + 1];
#pragma unroll
    for (int h = 0; h < 2; ++h) load_row_slots(row_slots[h], p, m + lane / 4 + 8 * h);
    const bool whole = walk.n0 + TILE_N <= p.n;
#if SPREADS
    if (walk.starts_sum()) {
      spread[0] = spread[1] = 0;
#pragma unroll
      for (int f = 0; f < FURTHER; ++f) further[f][0] = further[f][1] = 0;
    }
    float of_tile[FURTHER + 1][2] = {};
    if (walk.starts_range()) allowed = is_all_allowed(p, params);
#else
    const bool allowed = false;  // RATED has those
#endif
    const auto make = [&](float (&values)[16], int strip, int) {
      const FoldStrip place = {shared.columns, strip * 32 + lane % 4 * 2, m + lane / 4, walk.n0};
#if SPREADS && (FURTHER || BESIDE)
      strip_values(values, sum + strip * 16, x, p, place, m, strip * 32, row_slots, params, allowed,
                   [&](int at, const REAL (&outputs)[OUTPUTS]) {
                     const bool is_there = whole || place.has(p, at / 4, at % 2);
                     add_further(of_tile, at, outputs, strip, place, is_there);
#if BESIDE
                     sums.beside[at] = is_there ? outputs[1 + FURTHER] : 0.0f;
#endif
                   });
#else
      strip_values(values, sum + strip * 16, x, p, place, m, strip * 32, row_slots, params, allowed);
#endif
#if SPREADS
      weigh(values, strip);
#endif
      if (!whole) {
#pragma unroll
        for (int i = 0; i < 16; ++i)
          if (!place.has(p, i / 4, i % 2)) values[i] = 0;
      }
#if SPREADS
      add_shares(values, place);
#endif
    };
    sums.add_tile(a, shared, m + lane / 4, walk, make, [] { return 1.0f; });
#if SPREADS
#pragma unroll
    for (int f = 0; f < FURTHER; ++f) {
      further[f][0] += of_tile[f][0];
      further[f][1] += of_tile[f][1];
    }
    if (walk.ends_sum()) store(a, m + lane / 4, walk);
#endif
  }
#endif
};
