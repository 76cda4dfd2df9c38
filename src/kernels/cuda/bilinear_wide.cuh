// Values of a tile of products, times many columns of v (wide_fold.cuh).
struct Consumer {
  WideSums<BilinearShared> sums;

  static MERCER_METHOD void start(const BilinearArguments&, i64) {}
  static MERCER_METHOD void finish(const CandidateArguments&) {}

#if RATED == 1
  MERCER_METHOD void take(const BilinearArguments& a, const BilinearShared& shared, const float (&sum)[SUMS], i64 m,
                          const Walk& walk, const RatedRows& x) {
    const PairArguments& p = a.pairs;
    const auto make = [&](float (&values)[16], int strip, int stage) {
      x.values(values, sum + strip * 16, sums.numbers_of(shared, stage) + WIDE * 4);
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
    const auto make = [&](float (&values)[16], int strip, int) {
      const FoldStrip place = {shared.columns, strip * 32 + lane % 4 * 2, m + lane / 4, walk.n0};
      strip_values(values, sum + strip * 16, x, p, place, m, strip * 32, row_slots, params, false);
      if (whole) return;
#pragma unroll
      for (int i = 0; i < 16; ++i)
        if (!place.has(p, i / 4, i % 2)) values[i] = 0;
    };
    sums.add_tile(p, shared, m + lane / 4, walk, make, [] { return 1.0f; });
  }
#endif
};
