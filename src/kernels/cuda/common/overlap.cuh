// Kernels that may be launched to overlap the one ahead of them on their stream, from compute capability 9.0 on: before
// this wait they read nothing that it writes, and write nothing. The kernel that comes next may start after this
// wait, which is all that it does in a plain launch.
#pragma once

#include "common/prelude.cuh"

MERCER_INLINE void wait_for_kernel_ahead() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
