// Long columns of a block method: random values, and how far products are from multiples of their columns.
//
// Budget: 32 registers, no shared memory but for the sums of warps.
#define COLUMN_THREADS 256

// splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
MERCER_INLINE unsigned long long mixed_bits(unsigned long long x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// data[i] in (-1, 1), evenly distributed.
extern "C" __global__ void __launch_bounds__(COLUMN_THREADS) draw_columns(const __grid_constant__ ColumnArguments a) {
  const i64 stride = (i64)gridDim.x * COLUMN_THREADS;
  for (i64 i = (i64)blockIdx.x * COLUMN_THREADS + threadIdx.x; i < a.rows * a.columns; i += stride) {
    const unsigned bits = (unsigned)(mixed_bits(mixed_bits(a.seed) + (unsigned long long)i) >> 40);
    ((REAL*)a.data)[i] = (REAL)((double)(2 * (int)bits + 1) * 0x1p-24 - 1.0);
  }
}

// sums[j, block] = what a block has of the sum over i of (product[i, j] - values[j] data[i, j])^2; blockIdx.y is j.
extern "C" __global__ void __launch_bounds__(COLUMN_THREADS) column_gaps(const __grid_constant__ ColumnArguments a) {
  __shared__ double parts[COLUMN_THREADS / 32];
  const i64 j = blockIdx.y, stride = (i64)gridDim.x * COLUMN_THREADS;
  const REAL *data = (const REAL*)a.data + j * a.rows, *product = (const REAL*)a.product + j * a.rows;
  double sum = 0;
  for (i64 i = (i64)blockIdx.x * COLUMN_THREADS + threadIdx.x; i < a.rows; i += stride) {
    const double gap = (double)product[i] - a.values[j] * (double)data[i];
    sum += gap * gap;
  }
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < COLUMN_THREADS / 32; ++warp) sum += parts[warp];
  a.sums[j * gridDim.x + blockIdx.x] = sum;
}
