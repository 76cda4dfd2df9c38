#include "backend/cpu/pair_sums.h"

namespace mercer::cpu {

const SumKernels& sum_kernels(Target target) {
  switch (target) {
    case Target::x86_avx512: return sum_kernels_avx512();
    case Target::x86_avx2: return sum_kernels_avx2();
    default: return sum_kernels_baseline();
  }
}

}  // namespace mercer::cpu
