// What the processor offers: instruction sets that the operating system also saves, cache sizes, a name.
#pragma once

#include <cstdint>
#include <string>

namespace mercer {

enum class CpuVendor : std::uint8_t { other, amd, intel };

struct CpuFeatures {
  bool avx2 = false;         // AVX2 and FMA and F16C
  bool avx512 = false;       // AVX-512 F, DQ, BW and VL, and avx2
  bool avx512_bf16 = false;
  bool avx512_vnni = false;
  bool avx512_fp16 = false;
  bool amx_int8 = false;     // tiles of int8, where the system grants them (core/system/amx.h)
  std::int64_t l1d_bytes = 0, l2_bytes = 0, l3_bytes = 0;  // of one core; l3 of the complex that shares it
  std::string brand;
  CpuVendor vendor = CpuVendor::other;
  int family = 0, model = 0;  // as cpuid counts, extensions included
  std::string to_text() const;
};

CpuFeatures detect_cpu();
/// Detected once.
const CpuFeatures& cpu_features();

}  // namespace mercer
