// Sums of pairs of bytes for AVX-512 F, DQ, BW, VL and VNNI.
#define MERCER_BYTE_TABLE byte_kernels_avx512
#include "backend/cpu/pairs/byte_sums.inc"
