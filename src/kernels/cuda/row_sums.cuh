// The sum of one pair from the values themselves, by all lanes of a warp, in double; from rows (split_operands.cuh).
MERCER_INLINE void add_terms(REAL (&part)[1], const PairArguments& a, const Pack<float, 4>& x, const Pack<float, 4>& z,
                             int k) {
  const float* weights = (const float*)a.w;
#pragma unroll
  for (int c = 0; c < 4; ++c)
    if (k + c < a.k)
      update(part, &x.value[c], &z.value[c], READS_WEIGHTS ? weights[k + c] : 0.0f, nullptr, nullptr, nullptr, 0, 0, 0);
}

// Four features a lane and load, LOADS of each side on their way at once.
template <int LOADS>
MERCER_INLINE double direct_sum(const PairArguments& a, i64 m, i64 n) {
  constexpr int kStep = 128;
  const Pack<float, 4>* x = (const Pack<float, 4>*)(a.x_rows + m * a.row_length);
  const Pack<float, 4>* z = (const Pack<float, 4>*)(a.z_rows + n * a.row_length);
  const int first = threadIdx.x % 32 * 4;
  double sum = 0;
  int k = first;
#pragma unroll 1
  for (; k + (LOADS - 1) * kStep + 3 < a.k; k += LOADS * kStep) {
    Pack<float, 4> xs[LOADS], zs[LOADS];
#pragma unroll
    for (int l = 0; l < LOADS; ++l) {
      xs[l] = load_constant(x + (k + l * kStep) / 4);
      zs[l] = load_constant(z + (k + l * kStep) / 4);
    }
    REAL part[1] = {0};
#pragma unroll
    for (int l = 0; l < LOADS; ++l) add_terms(part, a, xs[l], zs[l], k + l * kStep);
    sum += part[0];
  }
#pragma unroll 1
  for (; k < a.k; k += kStep) {
    REAL part[1] = {0};
    add_terms(part, a, load_constant(x + k / 4), load_constant(z + k / 4), k);
    sum += part[0];
  }
#pragma unroll
  for (int offset = 16; offset >= 1; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  return sum;
}
