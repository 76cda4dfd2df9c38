// Whether what is tested runs under sanitizers, where it takes ten times as long: long tests are short there.
#pragma once

namespace mercer::testing_support {

#ifdef MERCER_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace mercer::testing_support
