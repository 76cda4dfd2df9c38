// Operands of at most 64 features from points of float32 as they lie, in two kernels, nothing packed before:
//
//   start_points   centres; the largest value that each block reads; the state starts
//   write_points   panels, rows, pieces, norms: what pack, examine and write_pieces make of more features
//
// The second one has asked for its points before it waits: all that may write them has ended when the first one starts
// to read. All is as split_operands.cuh has it, but for the quantum of norms: that follows a bound of all values in
// place of the largest one.
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

struct PointBlock : PieceBlock {
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

extern "C" __global__ void __launch_bounds__(SPLIT_THREADS) write_points(const __grid_constant__ SplitArguments a) {
  __shared__ PointBlock block;
  const int s = blockIdx.y, p = threadIdx.x / POINT_THREADS, place = threadIdx.x % POINT_THREADS;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const SplitSide& side = a.side[s];
  const i64 first = (i64)blockIdx.x * MERCER_IMAGE_ROWS;
  const PlainPoints points = points_of(a, s);
  FeatureFetch<PIECE_FEATURES, SPLIT_THREADS> fetch(points, points.points, first);
  fetch.load(0);
  fetch.store(block.tile);
  wait_for_kernel_ahead();
  clear_areas(a);
  if (first >= side.ld) return;
  FactorFetch factors;
  factors.load(a, s, 0);
  factors.store(block.factors);
  block.load_bound(a);
  __syncthreads();
  if (warp == 0) block.find_bound();
  float* values = (float*)side.values + first / MERCER_PANEL * a.k * MERCER_PANEL + first % MERCER_PANEL;
  for (int kk = warp; kk < a.k; kk += SPLIT_THREADS / 32) values[kk * MERCER_PANEL + lane] = block.tile[kk][lane];
  Magnitudes own;
  own.take(block, false);
  const float largest = own.most_of_point(block);
  if (place == 0) block.largest[p] = largest;
  __syncthreads();
  const float top = top_of(a, largest, block.largest[lane]);
  const bool carried = is_carried_beside(top, largest);
  const PiecePoint point = point_of(a, side, first, p, carried, a.pieces == 2, top);
  double norm = 0;
  write_values(a, point, block, 0, norm);
  norm = gather_norms(block.norms, norm);
  if (threadIdx.x >= MERCER_IMAGE_ROWS) return;
  keep_most(a, write_norm(a, side, first + threadIdx.x, norm, block.largest[threadIdx.x], block.bound));
}
