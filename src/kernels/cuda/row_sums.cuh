// The sum of one pair from the values themselves, by all lanes of a warp, in double; from rows (split_operands.cuh) or,
// without ROWS, from panels.
MERCER_INLINE void add_terms(REAL (&part)[1], const PairArguments& a, const Pack<REAL, 4>& x, const Pack<REAL, 4>& z,
                             int k) {
  const REAL* weights = (const REAL*)a.w;
  const REAL* params = READS_PARAMS ? params_of(a, 0) : nullptr;  // a sum's are those of the whole group
#pragma unroll
  for (int c = 0; c < 4; ++c)
    if (k + c < a.features)
      update(part, &x.value[c], &z.value[c], READS_WEIGHTS ? weights[k + c] : (REAL)0, nullptr, nullptr, params, 0, 0,
             (REAL)a.features);
}

// Features k … k + 3 of a point.
MERCER_INLINE Pack<REAL, 4> four_values(const PairArguments& a, const void* rows, const void* panels, i64 point,
                                         int k) {
#if ROWS
  return load_constant((const Pack<REAL, 4>*)((const REAL*)rows + point * a.row_length + k));
#else
  const REAL* panel = (const REAL*)panels + point / MERCER_PANEL * a.k * MERCER_PANEL + point % MERCER_PANEL;
  Pack<REAL, 4> values;
#pragma unroll
  for (int c = 0; c < 4; ++c) values.value[c] = panel[(i64)(k + c < a.k ? k + c : a.k - 1) * MERCER_PANEL];
  return values;
#endif
}

// Four features a lane and load, LOADS of each side on their way at once.
template <int LOADS>
MERCER_INLINE double direct_sum(const PairArguments& a, i64 m, i64 n) {
  constexpr int kStep = 128;
  const int first = threadIdx.x % 32 * 4;
  double sum = 0;
  int k = first;
#pragma unroll 1
  for (; k + (LOADS - 1) * kStep + 3 < a.features; k += LOADS * kStep) {
    Pack<REAL, 4> xs[LOADS], zs[LOADS];
#pragma unroll
    for (int l = 0; l < LOADS; ++l) {
      xs[l] = four_values(a, a.x_rows, a.x, m, k + l * kStep);
      zs[l] = four_values(a, a.z_rows, a.z, n, k + l * kStep);
    }
    REAL part[1] = {0};
#pragma unroll
    for (int l = 0; l < LOADS; ++l) add_terms(part, a, xs[l], zs[l], k + l * kStep);
    sum += part[0];
  }
#pragma unroll 1
  for (; k < a.features; k += kStep) {
    REAL part[1] = {0};
    add_terms(part, a, four_values(a, a.x_rows, a.x, m, k), four_values(a, a.z_rows, a.z, n, k), k);
    sum += part[0];
  }
#pragma unroll
  for (int offset = 16; offset >= 1; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  return sum;
}
