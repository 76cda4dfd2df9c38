// Sums of pairs of bytes for plain x86-64.
#define MERCER_BYTE_TABLE byte_kernels_baseline
#include "backend/cpu/pairs/byte_sums.inc"
