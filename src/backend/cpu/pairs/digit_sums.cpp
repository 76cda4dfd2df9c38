#include "backend/cpu/pairs/digit_sums.h"

namespace mercer::cpu {

const DigitKernels& digit_kernels(bool by_amx) { return by_amx ? digit_kernels_amx() : digit_kernels_baseline(); }

}  // namespace mercer::cpu
