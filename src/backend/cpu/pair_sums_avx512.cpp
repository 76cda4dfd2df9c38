// Sums of pairs for AVX-512 F, DQ, BW, VL.
#define MERCER_SUM_TABLE sum_kernels_avx512
#include "backend/cpu/pair_sums.inc"
