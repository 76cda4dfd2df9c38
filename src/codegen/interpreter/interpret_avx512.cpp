// The interpreter's kernels for AVX-512 F, DQ, BW, VL.
#define MERCER_KERNEL_TABLE avx512_kernel
#include "codegen/interpreter/interpret_kernels.inc"
