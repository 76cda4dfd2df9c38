#include "backend/cpu/pack/widen.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/system/cpu_features.h"

namespace mercer::cpu {
namespace {

#if defined(__x86_64__)
/// Whole vectors of 8; returns how many values they have.
[[gnu::target("avx,f16c")]] std::int64_t widen_by_vectors(const Half* from, std::int64_t count, float* to) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  return i;
}

/// The compiler makes vectors of this loop.
[[gnu::target("avx2")]] void widen_for_avx2(const Bfloat16* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
}
#endif

}  // namespace

void widen(const Half* from, std::int64_t count, float* to) {
  std::int64_t i = 0;
#if defined(__x86_64__)
  if (cpu_features().avx2) i = widen_by_vectors(from, count, to);
#endif
  for (; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

void widen(const Bfloat16* from, std::int64_t count, float* to) {
#if defined(__x86_64__)
  if (cpu_features().avx2) return widen_for_avx2(from, count, to);
#endif
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

}  // namespace mercer::cpu
