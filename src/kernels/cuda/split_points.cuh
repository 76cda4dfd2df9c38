// Operands of at most 64 features from points of float32 as they lie, in two kernels, nothing packed before:
//
//   start_points   centres; the largest value that each block reads; the state starts
//   write_points   panels, rows, pieces, norms: what pack, examine and write_pieces make of more features
//
// The second one has asked for its points before it waits: all that may write them has ended when the first one starts
// to read. All is as split_operands.cuh has it, but for the quantum of norms: that follows a bound of all values in
// place of the largest one.
MERCER_INLINE PlainPoints points_of(const SplitArguments& a, int s) {
  const SplitSide& side = a.side[s];
  return {side.points, side.count, a.k, side.point_stride, side.feature_stride};
}

// What pieces cannot carry has no part in it.
MERCER_INLINE void keep_largest(const SplitArguments& a, int block, int blocks) {
  __shared__ u32 of_warps[SPLIT_THREADS / 32];
  float most = 0;
  for (int s = 0; s < a.sides; ++s)
    read_points(points_of(a, s), block, blocks, [&](float value) {
      const float magnitude = fabsf(value);
      if (magnitude < INFINITY) most = fmaxf(most, magnitude);
    });
  const u32 of_warp = __reduce_max_sync(0xffffffffu, bits_of(most));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = of_warp;
  __syncthreads();
  if (threadIdx.x != 0) return;
  u32 of_block = 0;
  for (const u32 bits : of_warps) of_block = max(of_block, bits);
  a.block_largest[block] = float_of(of_block);
}

extern "C" __global__ void __launch_bounds__(SPLIT_THREADS) start_points(const __grid_constant__ SplitArguments a) {
  wait_for_kernel_ahead();
  const int centring = gridDim.x - a.range_blocks;
  if (blockIdx.x < centring)
    centre_features(a);
  else
    keep_largest(a, blockIdx.x - centring, a.range_blocks);
}

struct PointBlock {
  float tile[PIECE_FEATURES][FETCHED_POINTS + 1];
  PieceFactors factors;
  double norms[POINT_THREADS][MERCER_IMAGE_ROWS];
  float largest[MERCER_IMAGE_ROWS];
  float most[SPLIT_THREADS / 32], times[PIECE_FEATURES], bound;  // for the bound of all values

  // Every thread asks for its part at once: loads that follow one another would take longer than all else here.
  MERCER_METHOD void load_bound(const SplitArguments& a) {
    float own = 0;
    for (int b = threadIdx.x; b < a.range_blocks; b += SPLIT_THREADS) own = fmaxf(own, a.block_largest[b]);
    float largest_times = 0;
    for (int s = 0; s < a.sides && threadIdx.x < a.k; ++s)
      largest_times = fmaxf(largest_times, fabsf(multiplier<float>(a, s, threadIdx.x)));
    if (threadIdx.x < PIECE_FEATURES) times[threadIdx.x] = largest_times;
    own = float_of(__reduce_max_sync(0xffffffffu, bits_of(own)));
    if (threadIdx.x % 32 == 0) most[threadIdx.x / 32] = own;
  }
  // Of |value - centre| times its factor, of all that pieces carry; by a warp.
  MERCER_METHOD void find_bound() {
    const int lane = threadIdx.x % 32;
    float largest_value = 0, own = 0;
#pragma unroll
    for (int warp = 0; warp < SPLIT_THREADS / 32; ++warp) largest_value = fmaxf(largest_value, most[warp]);
#pragma unroll
    for (int k = lane; k < PIECE_FEATURES; k += 32)
      own = fmaxf(own, (largest_value + fabsf(factors.centres[k])) * times[k]);
    own = fminf(float_of(__reduce_max_sync(0xffffffffu, bits_of(own))), MOST_LARGEST);
    if (lane == 0) bound = own;
  }
};

// The largest value of the thread's point, which eight neighbours share.
MERCER_INLINE float largest_of_point(const PointBlock& block, const SplitArguments& a, int p, int place) {
  float most = 0;
#pragma unroll
  for (int i = 0; i < PIECE_FEATURES / POINT_THREADS; ++i) {
    const int kk = i * POINT_THREADS + place;
    if (kk >= a.k) continue;
    const float times = block.factors.times[kk], difference = block.tile[kk][p] - block.factors.centres[kk];
    const float value = fabsf(difference * times);
    const bool is_lost = value == 0 && difference != 0 && times != 0;  // below the floats: not carried
    most = max_nan(most, is_lost ? 0x1p-149f : value);
  }
#pragma unroll
  for (int lanes = 1; lanes < POINT_THREADS; lanes *= 2)
    most = max_nan(most, __shfl_xor_sync(0xffffffffu, most, lanes));
  return most;
}

extern "C" __global__ void __launch_bounds__(SPLIT_THREADS) write_points(const __grid_constant__ SplitArguments a) {
  __shared__ PointBlock block;
  const int s = blockIdx.y, p = threadIdx.x / POINT_THREADS, place = threadIdx.x % POINT_THREADS;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const SplitSide& side = a.side[s];
  const i64 first = (i64)blockIdx.x * MERCER_IMAGE_ROWS;
  const PlainPoints points = points_of(a, s);
  FeatureFetch<PIECE_FEATURES, SPLIT_THREADS> fetch(points);
  fetch.load(points, (const float*)points.points, first, 0);
  fetch.store(block.tile);
  wait_for_kernel_ahead();
  clear_areas(a);
  if (first >= side.ld) return;
  block.factors.load(a, s, 0);
  block.load_bound(a);
  __syncthreads();
  if (warp == 0) block.find_bound();
  float* values = (float*)side.values + first / MERCER_PANEL * a.k * MERCER_PANEL + first % MERCER_PANEL;
  for (int kk = warp; kk < a.k; kk += SPLIT_THREADS / 32) values[kk * MERCER_PANEL + lane] = block.tile[kk][lane];
  const float largest = largest_of_point(block, a, p, place);
  if (place == 0) block.largest[p] = largest;
  __syncthreads();
  const float top = top_of(a, largest, block.largest[lane]);
  const bool carried = is_carried_beside(top, largest);
  const PiecePoint point = point_of(a, side, first, p, carried, a.pieces == 2, top);
  double norm = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int kk = half * 32 + place * 4;
    Pack<float, 4> raw;
    u32 high[2], low[2];
#pragma unroll
    for (int c = 0; c < 4; ++c) raw.value[c] = kk + c < a.k ? block.tile[kk + c][p] : 0.0f;
    split_values(high, low, norm, block.factors, point, raw, kk);
    if (side.rows_out != nullptr && kk < a.row_length) store_pack(point.row + kk, raw);
    if (!point.has_low || kk < a.units * 32) write_unit(point, high, low, kk, half);
  }
  norm = gather_norms(block.norms, norm);
  if (threadIdx.x >= MERCER_IMAGE_ROWS) return;
  keep_most(a, write_norm(a, side, first + threadIdx.x, norm, block.largest[threadIdx.x], block.bound));
}
