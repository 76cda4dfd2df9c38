// The next pivot of Cholesky's factor by columns: the largest diagonal that is left, the first of equal ones.
//
// Floor: bytes, a column and twice the diagonal, in double, for each pivot. Budget: 64 registers.
#define PIVOT_THREADS 256

struct PivotChoice {
  double value;
  i64 index;
};

// NaN and infinities win.
MERCER_INLINE PivotChoice better_pivot(PivotChoice u, PivotChoice v) {
  const bool is_bad = !(u.value - u.value == 0), other_bad = !(v.value - v.value == 0);
  if (is_bad != other_bad) return is_bad ? u : v;
  if (u.value == v.value || is_bad) return u.index <= v.index ? u : v;
  return u.value > v.value ? u : v;
}

// chosen[block], of what its threads hold.
MERCER_INLINE void store_pivot(const PivotArguments& a, PivotChoice best) {
  __shared__ double values[PIVOT_THREADS / 32];
  __shared__ i64 indices[PIVOT_THREADS / 32];
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    PivotChoice other;
    other.value = __shfl_xor_sync(0xffffffffu, best.value, lanes);
    other.index = __shfl_xor_sync(0xffffffffu, best.index, lanes);
    best = better_pivot(best, other);
  }
  if (threadIdx.x % 32 == 0) {
    values[threadIdx.x / 32] = best.value;
    indices[threadIdx.x / 32] = best.index;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < PIVOT_THREADS / 32; ++warp) {
    PivotChoice other;
    other.value = values[warp];
    other.index = indices[warp];
    best = better_pivot(best, other);
  }
  a.values[blockIdx.x] = best.value;
  a.indices[blockIdx.x] = best.index;
}

MERCER_INLINE PivotChoice no_pivot() {
  PivotChoice none;
  none.value = -1.7976931348623157e308;
  none.index = 0x7fffffffffffffffll;
  return none;
}

// left = the diagonal.
extern "C" __global__ void __launch_bounds__(PIVOT_THREADS) begin_pivots(const __grid_constant__ PivotArguments a) {
  PivotChoice best = no_pivot();
  const i64 step = (i64)gridDim.x * PIVOT_THREADS;
  for (i64 i = (i64)blockIdx.x * PIVOT_THREADS + threadIdx.x; i < a.rows; i += step) {
    PivotChoice mine;
    mine.index = i;
    mine.value = a.left[i] = (double)((const REAL*)a.diagonal)[i * a.diagonal_step];
    best = better_pivot(best, mine);
  }
  store_pivot(a, best);
}

// column /= sqrt(its diagonal); left -= column^2.
extern "C" __global__ void __launch_bounds__(PIVOT_THREADS) add_pivot(const __grid_constant__ PivotArguments a) {
  PivotChoice best = no_pivot();
  REAL* column = (REAL*)a.column;
  const i64 step = (i64)gridDim.x * PIVOT_THREADS;
  for (i64 i = (i64)blockIdx.x * PIVOT_THREADS + threadIdx.x; i < a.rows; i += step) {
    const bool is_pivot = i == a.pivot;
    column[i] = (REAL)(is_pivot ? a.root : (double)column[i] / a.root);
    PivotChoice mine;
    mine.index = i;
    mine.value = a.left[i] = is_pivot ? 0 : a.left[i] - (double)column[i] * (double)column[i];
    best = better_pivot(best, mine);
  }
  store_pivot(a, best);
}
