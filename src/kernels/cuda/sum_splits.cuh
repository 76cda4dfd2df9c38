// Partial fields of the ranges of n, added up in order: [split][output][m][k] become out.
extern "C" __global__ void sum_splits(const __grid_constant__ SumArguments a) {
  const i64 per_split = (i64)a.outputs * a.m * a.k;
  const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= per_split) return;
  REAL sum = ((const REAL*)a.partial)[at];
  for (int s = 1; s < a.splits; ++s) sum += ((const REAL*)a.partial)[s * per_split + at];
  const i64 k = at % a.k, m = at / a.k % a.m, o = at / a.k / a.m;
  ((REAL*)a.out)[o * a.out_output + m * a.out_row + k * a.out_feature] = sum;
}
