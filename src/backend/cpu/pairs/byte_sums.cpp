#include "backend/cpu/pairs/byte_sums.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "core/system/mutex.h"

namespace mercer::cpu {
namespace {

/// The system saves the registers where it does those of AVX-512.
bool has_vnni() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c & (1U << 11)) != 0;
#else
  return false;
#endif
}

}  // namespace

const ByteKernels& byte_kernels(Target target) {
  static constinit Lazy<bool> vnni;
  switch (target) {
    case Target::x86_avx512: return vnni.get(has_vnni) ? byte_kernels_avx512() : byte_kernels_avx2();
    case Target::x86_avx2: return byte_kernels_avx2();
    default: return byte_kernels_baseline();
  }
}

}  // namespace mercer::cpu
