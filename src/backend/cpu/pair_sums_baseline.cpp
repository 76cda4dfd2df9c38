// Sums of pairs for plain x86-64.
#define MERCER_SUM_TABLE sum_kernels_baseline
#include "backend/cpu/pair_sums.inc"
