// Values of a tile of products, times many columns of v (wide_fold.cuh).
//
// SPREADS: their squares times the shares of the columns are added up. WEIGHT_UNITS: before, they are multiplied with
// the sums of other products (rank_field.cuh).
struct Consumer {
  WideSums<BilinearShared> sums;
#if WEIGHT_UNITS
  float weights[SUMS];
#endif
#if SPREADS
  float spread[2];  // rows m and m + 8
  bool allowed;                    // no sum of values needs a test

  MERCER_METHOD void weigh(float (&values)[16], int strip) {
#if WEIGHT_UNITS
#pragma unroll
    for (int i = 0; i < 16; ++i) values[i] *= weights[strip * 16 + i];
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
  // As WideSums::store.
  MERCER_METHOD void store_spread(const BilinearArguments& a, i64 m, const Walk& walk) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = spread[h] + __shfl_xor_sync(0xffffffffu, spread[h], 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const i64 row = m + 8 * h;
      if (threadIdx.x % 4 != 0 || row >= a.pairs.m) continue;
      float& to = a.spread[walk.split * a.pairs.partial_ld + row];
      to = walk.is_first_sum() ? sum : to + sum;
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
    sums.add_tile(p, shared, m + threadIdx.x % 32 / 4, walk, make,
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
    if (walk.starts_sum()) spread[0] = spread[1] = 0;
    if (walk.starts_range()) allowed = is_all_allowed(p, params);
#else
    const bool allowed = false;  // RATED has those
#endif
    const auto make = [&](float (&values)[16], int strip, int) {
      const FoldStrip place = {shared.columns, strip * 32 + lane % 4 * 2, m + lane / 4, walk.n0};
      strip_values(values, sum + strip * 16, x, p, place, m, strip * 32, row_slots, params, allowed);
      if (!whole) {
#pragma unroll
        for (int i = 0; i < 16; ++i)
          if (!place.has(p, i / 4, i % 2)) values[i] = 0;
      }
#if SPREADS
      weigh(values, strip);
      add_shares(values, place);
#endif
    };
    sums.add_tile(p, shared, m + lane / 4, walk, make, [] { return 1.0f; });
#if SPREADS
    if (walk.ends_sum()) store_spread(a, m + lane / 4, walk);
#endif
  }
#endif
};
