// Parameters of a batch item; there is one row for all of them where they came by value.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

MERCER_INLINE const REAL* params_of(const PairArguments& a, i64 item) {
  if (NUMBERS) return (const REAL*)a.params.numbers;
  return a.params.values ? (const REAL*)a.params.values + item * a.params.count : (const REAL*)a.params.numbers;
}
