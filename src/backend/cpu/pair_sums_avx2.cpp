// Sums of pairs for AVX2 and FMA.
#define MERCER_SUM_TABLE sum_kernels_avx2
#include "backend/cpu/pair_sums.inc"
