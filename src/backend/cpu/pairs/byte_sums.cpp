#include "backend/cpu/pairs/byte_sums.h"

#include "core/system/cpu_features.h"

namespace mercer::cpu {

const ByteKernels& byte_kernels(Target target) {
  switch (target) {
    case Target::x86_avx512: return cpu_features().avx512_vnni ? byte_kernels_avx512() : byte_kernels_avx2();
    case Target::x86_avx2: return byte_kernels_avx2();
    default: return byte_kernels_baseline();
  }
}

}  // namespace mercer::cpu
