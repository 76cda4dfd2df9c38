// The x86 targets, a row each; what their instructions cost is in cpu_rows.cpp.
#include "core/system/cpu_features.h"
#include "plan/cpu/target.h"

namespace mercer::plan {

extern const TargetInfo kAvx512, kAvx2;
const TargetInfo kAvx512{Target::x86_avx512, "x86_avx512", 64, 32, 7, true, &kReferenceRow.wide,
                         [] { return cpu_features().avx512; }};
const TargetInfo kAvx2{Target::x86_avx2, "x86_avx2", 32, 16, 0, false, &kReferenceRow.narrow,
                       [] { return cpu_features().avx2; }};

}  // namespace mercer::plan
