// The steps of a blocked factorisation in split precision (backend/cuda/split_factor.cpp) beside its products. Pieces carry rows
// whose largest value is in [2^-50, 2^50], so the factorisation is that of D a D, with powers of two D that bring the
// diagonal into [1, 4). Then no value of the factor is over 2, and what is below 2^-50 changes nothing that float32
// would show. L = D^-1 L'. Both are exact, but for values that vanish beside the diagonal.
#define FACTOR_THREADS 256
#define FACTOR_WIDTH 64  // columns that are factored at once
#define FACTOR_ROWS 64   // of a block of solve_rows
#define MOST_OF_FACTOR 0x1p50f

// Up to 64 columns from `first` on: the square of the diagonal, by one block; thread (i, j) has rows 4 i … and columns
// 4 j … in registers. Step k: column k to all, and what it takes from the columns behind. Floor: 64 steps of a trip through
// shared memory, a barrier and a quotient, some 150 cycles each: 5.5 us. Loops stay loops: code that runs once waits for
// its instructions.
extern "C" __global__ void __launch_bounds__(FACTOR_THREADS) factor_square(const __grid_constant__ FactorArguments a) {
  __shared__ __align__(16) float column[2][FACTOR_WIDTH];
  __shared__ float pivots[FACTOR_WIDTH];
  const int i = threadIdx.x % 16 * 4, j = threadIdx.x / 16 * 4, n = a.block;
  float* const own = a.a + a.first * (a.stride + 1);
  float value[4][4];
#pragma unroll
  for (int q = 0; q < 4; ++q)
#pragma unroll
    for (int r = 0; r < 4; ++r)
      value[r][q] = j + q <= i + r && i + r < n ? own[i + r + (j + q) * a.stride] : i + r == j + q ? 1.0f : 0.0f;
  for (int k4 = 0; k4 < FACTOR_WIDTH; k4 += 4) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float* const shared = column[k % 2];
      if (j == k4)
#pragma unroll
        for (int r = 0; r < 4; ++r) shared[i + r] = value[r][k];
      __syncthreads();
      const float pivot = shared[k4 + k], inverse = 1.0f / pivot;
      if (threadIdx.x == 0) pivots[k4 + k] = pivot;
      const Pack<float, 4> rows = *(const Pack<float, 4>*)(shared + i), columns = *(const Pack<float, 4>*)(shared + j);
      if (j < k4) continue;
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float part = rows.value[r] * inverse;
#pragma unroll
        for (int q = 0; q < 4; ++q)
          if (j > k4 || q > k) value[r][q] = __fmaf_rn(-part, columns.value[q], value[r][q]);
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const float root = __fsqrt_rn(pivots[j + q]), inverse = 1.0f / root;
#pragma unroll
    for (int r = 0; r < 4; ++r)
      if (j + q <= i + r && i + r < n)
        own[i + r + (j + q) * a.stride] = i + r == j + q ? root : value[r][q] * inverse;
  }
  if (threadIdx.x < n && !(pivots[threadIdx.x] > 0)) atomicMin(a.bad, (int)a.first + (int)threadIdx.x + 1);
}

// The rows below: x L^T = a. A warp has 16 rows, a lane 8 of them and 4 columns. Step j: column j of x to all lanes of its
// rows, and what it takes from the columns behind. Floor of a step: 8 shuffles, 32 multiply-adds, 50 issue slots and as
// many cycles of latency: 3.5 us; beside 512 bytes a row.
extern "C" __global__ void __launch_bounds__(FACTOR_ROWS * 2) solve_rows(const __grid_constant__ FactorArguments a) {
  __shared__ __align__(16) float factor[FACTOR_WIDTH][FACTOR_WIDTH];  // [column][row]
  __shared__ float inverses[FACTOR_WIDTH];
  const int n = a.block, lane = threadIdx.x % 32, left = lane % 16 * 4;
  const float* const square = a.a + a.first * (a.stride + 1);
  for (int e = threadIdx.x; e < FACTOR_WIDTH * FACTOR_WIDTH; e += FACTOR_ROWS * 2) {
    const int r = e % FACTOR_WIDTH, c = e / FACTOR_WIDTH;
    const float value = r >= c && r < n ? square[r + c * a.stride] : r == c ? 1.0f : 0.0f;
    factor[c][r] = value;
    if (r == c) inverses[r] = 1.0f / value;
  }
  const i64 top = a.first + n + ((i64)blockIdx.x * (FACTOR_ROWS * 2 / 32) + threadIdx.x / 32) * 16 + lane / 16 * 8;
  float value[8][4];
#pragma unroll
  for (int q = 0; q < 4; ++q)
#pragma unroll
    for (int r = 0; r < 8; ++r)
      value[r][q] = top + r < a.n && left + q < n ? a.a[top + r + (a.first + left + q) * a.stride] : 0.0f;
  __syncthreads();
  for (int j4 = 0; j4 < FACTOR_WIDTH; j4 += 4) {
    const int from = (lane & 16) + j4 / 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float inverse = inverses[j4 + j];
      const Pack<float, 4> columns = *(const Pack<float, 4>*)&factor[j4 + j][left];
#pragma unroll
      for (int r = 0; r < 8; ++r) {
        const float x = __shfl_sync(0xffffffffu, value[r][j], from) * inverse;
        if (left == j4) value[r][j] = x;
#pragma unroll
        for (int q = 0; q < 4; ++q)
          if (left > j4 || (left == j4 && q > j)) value[r][q] = __fmaf_rn(-x, columns.value[q], value[r][q]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 8; ++r) {
    bool carried = true;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      carried = carried && fabsf(value[r][q]) <= MOST_OF_FACTOR;
      if (top + r < a.n && left + q < n) a.a[top + r + (a.first + left + q) * a.stride] = value[r][q];
    }
    if (top + r < a.n && !carried) atomicMin(a.bad, (int)(top + r) + 1);
  }
}

extern "C" __global__ void __launch_bounds__(FACTOR_THREADS) find_scales(const __grid_constant__ FactorArguments a) {
  const i64 i = (i64)blockIdx.x * FACTOR_THREADS + threadIdx.x;
  if (i >= a.n) return;
  const float pivot = a.a[i * (a.stride + 1)];
  const int exponent = pivot > 0 && pivot < INFINITY ? ilogbf(pivot) : 0;
  const int half = exponent >= 0 ? exponent / 2 : -((1 - exponent) / 2);
  a.halves[i] = half;
  if (half != 0) *a.scales = 1;
}

// The lower triangle, in columns; `undoes`: of the factor.
extern "C" __global__ void __launch_bounds__(FACTOR_THREADS) scale_triangle(const __grid_constant__ FactorArguments a) {
  if (*a.scales == 0) return;
  for (i64 j = blockIdx.x; j < a.n; j += gridDim.x) {
    const int own = a.halves[j];
    for (i64 i = j + threadIdx.x; i < a.n; i += FACTOR_THREADS) {
      float& value = a.a[i + j * a.stride];
      value = a.undoes ? scalbnf(value, a.halves[i]) : scalbnf(scalbnf(value, -a.halves[i]), -own);
    }
  }
}

// The first failure of all: a pivot that is not positive, or a row that pieces cannot carry, whose pivot, of what is left
// of at most 4, would not be.
extern "C" __global__ void say_info(const __grid_constant__ FactorArguments a) {
  *a.said = *a.bad == 0x7fffffff ? 0 : *a.bad;
}
