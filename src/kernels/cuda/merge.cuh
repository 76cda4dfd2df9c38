// Partial states of the ranges of n, merged in order: one thread a result. PRODUCT: sums [split][column][ld].
extern "C" __global__ void merge_ranges(const __grid_constant__ MergeArguments a) {
  const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  const i64 per_group = a.m * a.columns, group = at / per_group, rest = at % per_group;
  i64 groups = 1;
  for (int axis = 0; axis < a.groups.count; ++axis) groups *= a.groups.extent[axis];
  if (group >= groups) return;
  const i64 column = rest / a.m, m = rest % a.m;
  OUT* out = (OUT*)a.out + batch_offset(a.groups, a.out_step, group) + m * a.out_row + column * a.out_column;
#if CONSUMER == 1
  const REAL* partial = (const REAL*)a.partial + (group * a.splits * a.columns + column) * a.ld + m;
  double sum = partial[0];
  for (int s = 1; s < a.splits; ++s) sum += partial[(i64)s * a.columns * a.ld];
  convert(*out, (REAL)sum);
#else
  const FoldState* partial = (const FoldState*)a.partial + group * a.splits * a.ld + m;
  FoldState state = partial[0];
  for (int s = 1; s < a.splits; ++s) merge(state, partial[(i64)s * a.ld]);
  convert(*out, result(state));
#endif
}
