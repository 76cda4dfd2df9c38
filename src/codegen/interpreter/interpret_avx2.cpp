// The interpreter's kernels for AVX2 with FMA.
#define MERCER_KERNEL_TABLE avx2_kernel
#include "codegen/interpreter/interpret_kernels.inc"
