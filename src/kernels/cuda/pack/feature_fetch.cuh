// Features of 32 points on their way to shared memory, some values a thread, along what lies closer, so that both sides
// of the transposition are coalesced. POINT: element type of the points.
#pragma once

#include "common/prelude.cuh"

#define FETCHED_POINTS 32
#define POINTS_RUN 256  // values that a warp reads together

template <int FEATURES, int THREADS>
struct FeatureFetch {
  static constexpr int kWarps = THREADS / 32, kPointPasses = FETCHED_POINTS / kWarps;
  static constexpr int kPasses = FEATURES / kWarps;
  POINT values[kPasses];

  // `points` has count, k, and the strides of points and features. The last point is repeated after itself.
  template <class Points>
  MERCER_METHOD FeatureFetch(const Points& points, const void* from, i64 first)
      : from_((const POINT*)from + first * points.point_stride), point_stride_(points.point_stride),
        feature_stride_(points.feature_stride), k_((int)points.k),
        last_(first + FETCHED_POINTS <= points.count ? FETCHED_POINTS - 1 : (int)(points.count - 1 - first)),
        along_k_(lies_along_k(points)) {}
  template <class Points>
  static MERCER_METHOD bool lies_along_k(const Points& a) {
    return (a.feature_stride < 0 ? -a.feature_stride : a.feature_stride) <=
           (a.point_stride < 0 ? -a.point_stride : a.point_stride);
  }

  // Loads from feature k0 on; there are zeros after the last one.
  MERCER_METHOD void load(int k0) {
    // Unknown to the compiler: places of all passes would stay in registers from slice to slice.
    int thread = threadIdx.x;
    keep(thread);
    const POINT* from = from_ + k0 * feature_stride_;
    const int own_point = point_of(0, thread), own_feature = feature_of(0, thread);
    if (last_ == FETCHED_POINTS - 1 && k0 + FEATURES <= k_) {
      from += own_point * point_stride_ + own_feature * feature_stride_;
      const i64 step = kWarps * (along_k_ ? point_stride_ : feature_stride_);
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        if (pass % kPointPasses == 0 && pass > 0) from += 32 * feature_stride_;
        values[pass] = from[pass % kPointPasses * step];
      }
      return;
    }
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int point = min(point_of(pass, thread), last_), feature = feature_of(pass, thread);
      values[pass] = k0 + feature < k_ ? from[point * point_stride_ + feature * feature_stride_] : POINT{};
    }
  }
  MERCER_METHOD void store(POINT (&tile)[FEATURES][FETCHED_POINTS + 1]) const {
    constexpr int kRow = FETCHED_POINTS + 1;
    int thread = threadIdx.x;
    keep(thread);
    POINT* to = &tile[feature_of(0, thread)][point_of(0, thread)];
    const int step = kWarps * (along_k_ ? 1 : kRow);
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass)
      to[pass % kPointPasses * step + pass / kPointPasses * 32 * kRow] = values[pass];
  }

 private:
  const POINT* from_;
  i64 point_stride_, feature_stride_;
  int k_, last_;  // the last point, from the first one on; below zero where all are after it
  bool along_k_;

  MERCER_METHOD int feature_of(int pass, int thread) const {
    return along_k_ ? thread % 32 + pass / kPointPasses * 32 : thread / 32 + pass * kWarps;
  }
  MERCER_METHOD int point_of(int pass, int thread) const {
    return along_k_ ? thread / 32 + pass % kPointPasses * kWarps : thread % 32;
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
