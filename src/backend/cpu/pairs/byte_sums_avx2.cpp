// Sums of pairs of bytes for AVX2.
#define MERCER_BYTE_TABLE byte_kernels_avx2
#include "backend/cpu/pairs/byte_sums.inc"
