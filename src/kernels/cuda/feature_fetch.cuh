// Features of 32 points on their way to shared memory, some values a thread, along what lies closer, so that both sides
// of the transposition are coalesced. POINT: element type of the points.
#define FETCHED_POINTS 32
#define POINTS_RUN 256  // values that a warp reads together

template <int FEATURES, int THREADS>
struct FeatureFetch {
  static constexpr int kWarps = THREADS / 32, kPointPasses = FETCHED_POINTS / kWarps;
  static constexpr int kPasses = FEATURES / kWarps;
  POINT values[kPasses];
  bool along_k;

  // `a` has count, k, and the strides of points and features.
  template <class Points>
  MERCER_METHOD explicit FeatureFetch(const Points& a) : along_k(lies_along_k(a)) {}
  template <class Points>
  static MERCER_METHOD bool lies_along_k(const Points& a) {
    return (a.feature_stride < 0 ? -a.feature_stride : a.feature_stride) <=
           (a.point_stride < 0 ? -a.point_stride : a.point_stride);
  }

  // Those from the point `first` and the feature k0 on. Behind the last point that one repeats.
  template <class Points>
  MERCER_METHOD void load(const Points& a, const POINT* points, i64 first, i64 k0) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      i64 point = first + point_of(pass);
      if (point >= a.count) point = a.count - 1;
      const i64 feature = k0 + feature_of(pass);
      if (feature < a.k) values[pass] = points[point * a.point_stride + feature * a.feature_stride];
    }
  }
  // What lies behind the last feature may be anything.
  MERCER_METHOD void store(POINT (&tile)[FEATURES][FETCHED_POINTS + 1]) const {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) tile[feature_of(pass)][point_of(pass)] = values[pass];
  }

 private:
  MERCER_METHOD int feature_of(int pass) const {
    return along_k ? threadIdx.x % 32 + pass / kPointPasses * 32 : threadIdx.x / 32 + pass * kWarps;
  }
  MERCER_METHOD int point_of(int pass) const {
    return along_k ? threadIdx.x / 32 + pass % kPointPasses * kWarps : threadIdx.x % 32;
  }
};

// Every value once, by all warps of these blocks. `points` as above, with the points themselves.
template <class Points, class Take>
MERCER_INLINE void read_points(const Points& points, int block, int blocks, const Take& take) {
  const bool along_k = FeatureFetch<32, 32>::lies_along_k(points);
  i64 rows = along_k ? points.count : points.k, length = along_k ? points.k : points.count;
  const i64 step = along_k ? points.feature_stride : points.point_stride;
  const i64 row_step = along_k ? points.point_stride : points.feature_stride;
  if (row_step == length * step) length *= rows, rows = 1;
  const i64 runs = (length + POINTS_RUN - 1) / POINTS_RUN, warps = blockDim.x / 32;
  for (i64 unit = block * warps + threadIdx.x / 32; unit < rows * runs; unit += blocks * warps) {
    const i64 row = runs == 1 ? unit : unit / runs, first = (unit - row * runs) * POINTS_RUN + threadIdx.x % 32;
    const POINT* from = (const POINT*)points.points + row * row_step + first * step;
    POINT values[POINTS_RUN / 32];
#pragma unroll
    for (int i = 0; i < POINTS_RUN / 32; ++i)
      if (first + i * 32 < length) values[i] = from[i * 32 * step];
#pragma unroll
    for (int i = 0; i < POINTS_RUN / 32; ++i)
      if (first + i * 32 < length) take(widen<float>(values[i]));
  }
}
