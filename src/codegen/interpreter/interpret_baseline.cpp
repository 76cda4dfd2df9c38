// The interpreter's kernels for any x86-64 (or other) processor.
#define MERCER_KERNEL_TABLE baseline_kernel
#include "codegen/interpreter/interpret_kernels.inc"
