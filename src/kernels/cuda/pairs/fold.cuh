// States of folds over n, and how two of them become one. NaN wins in max and min, its first index in argmax and
// argmin; ties go to the smaller index.
//
//   merge_values    the first `count` values of a lane, whose columns n_of(j) ascend, into a state
//   state_of_lane   what another lane has
#pragma once

#include "common/prelude.cuh"

#if FOLD_KIND == 5
struct FoldState {
  REAL top, sum;  // sum of exp(value - top)
};
MERCER_INLINE FoldState empty_state() { return {-(REAL)INFINITY, 0}; }
MERCER_INLINE void merge(FoldState& a, const FoldState& b) {
  const REAL top = max_nan(a.top, b.top);
  // Where both are the same infinity, their difference would be NaN.
  const REAL scale_a = a.top == top ? (REAL)1 : fold_exp(a.top - top);
  const REAL scale_b = b.top == top ? (REAL)1 : fold_exp(b.top - top);
  a.sum = a.sum * scale_a + b.sum * scale_b;
  a.top = top;
}
MERCER_INLINE REAL result(const FoldState& a) { return a.top == -(REAL)INFINITY ? a.top : a.top + fold_log(a.sum); }
MERCER_INLINE FoldState state_of_lane(const FoldState& a, int lanes) {
  return {__shfl_xor_sync(0xffffffffu, a.top, lanes), __shfl_xor_sync(0xffffffffu, a.sum, lanes)};
}
// One power a value: their maximum comes first, and rarely exceeds that of all before.
template <int COUNT, class Column>
MERCER_INLINE void merge_values(FoldState& a, const REAL (&values)[COUNT], int count, const Column&) {
  REAL top = a.top, sum = 0;
#pragma unroll
  for (int j = 0; j < COUNT; ++j)
    if (j < count) top = max_nan(top, values[j]);
  if (!(top == a.top)) a = {top, a.sum * fold_exp(a.top - top)};
  const bool finite = fabs(top) < (REAL)INFINITY;
#pragma unroll
  for (int j = 0; j < COUNT; ++j)
    if (j < count) sum += finite ? fold_exp(values[j] - top) : (REAL)(values[j] == top);
  a.sum += sum;
}
#elif FOLD_KIND == 3 || FOLD_KIND == 4
struct FoldState {
  REAL value;
  i64 index;  // -1: none yet
};
MERCER_INLINE FoldState empty_state() { return {FOLD_KIND == 3 ? -(REAL)INFINITY : (REAL)INFINITY, -1}; }
MERCER_INLINE void merge(FoldState& a, const FoldState& b) {
  if (b.index < 0) return;
  const bool nan_a = a.value != a.value, nan_b = b.value != b.value;
  bool take = a.index < 0;
  if (!take) {
    const bool better = FOLD_KIND == 3 ? b.value > a.value : b.value < a.value;
    const bool tie = nan_a ? nan_b : b.value == a.value;
    take = (nan_b && !nan_a) || (!nan_a && better) || (tie && b.index < a.index);
  }
  if (take) a = b;
}
MERCER_INLINE i64 result(const FoldState& a) { return a.index; }
MERCER_INLINE FoldState state_of_lane(const FoldState& a, int lanes) {
  return {__shfl_xor_sync(0xffffffffu, a.value, lanes), __shfl_xor_sync(0xffffffffu, a.index, lanes)};
}
// The best value comes first: only where it is as good as all before, its column is looked for.
template <int COUNT, class Column>
MERCER_INLINE void merge_values(FoldState& a, const REAL (&values)[COUNT], int count, const Column& n_of) {
  REAL best = values[0];
#pragma unroll
  for (int j = 1; j < COUNT; ++j)
    if (j < count) best = FOLD_KIND == 3 ? max_nan(best, values[j]) : min_nan(best, values[j]);
  const bool is_worse = FOLD_KIND == 3 ? best < a.value : best > a.value;
  if (is_worse || count <= 0) return;
  int at = 0;
#pragma unroll
  for (int j = COUNT - 1; j >= 0; --j)
    if (j < count && (best == best ? values[j] == best : values[j] != values[j])) at = j;
  merge(a, {best, n_of(at)});
}
#elif FOLD_KIND == 0
// A sum, and what rounding has taken from it (Knuth's TwoSum), but for infinite ones.
struct FoldState {
  REAL value, rest;
};
MERCER_INLINE FoldState empty_state() { return {0, 0}; }
MERCER_INLINE FoldState state_of(REAL value) { return {value, 0}; }
MERCER_INLINE void merge(FoldState& a, const FoldState& b) {
  const REAL sum = a.value + b.value, share = sum - a.value;
  const REAL rest = (a.value - (sum - share)) + (b.value - share);
  a.rest += b.rest + (fabs(rest) < (REAL)INFINITY ? rest : (REAL)0);
  a.value = sum;
}
MERCER_INLINE REAL result(const FoldState& a) { return a.value + a.rest; }
MERCER_INLINE FoldState state_of_lane(const FoldState& a, int lanes) {
  return {__shfl_xor_sync(0xffffffffu, a.value, lanes), __shfl_xor_sync(0xffffffffu, a.rest, lanes)};
}
#else
struct FoldState {
  REAL value;
};
MERCER_INLINE FoldState empty_state() { return {FOLD_KIND == 1 ? -(REAL)INFINITY : (REAL)INFINITY}; }
MERCER_INLINE FoldState state_of(REAL value) { return {value}; }
MERCER_INLINE void merge(FoldState& a, const FoldState& b) {
  a.value = FOLD_KIND == 1 ? max_nan(a.value, b.value) : min_nan(a.value, b.value);
}
MERCER_INLINE REAL result(const FoldState& a) { return a.value; }
MERCER_INLINE FoldState state_of_lane(const FoldState& a, int lanes) {
  return {__shfl_xor_sync(0xffffffffu, a.value, lanes)};
}
#endif
#if FOLD_KIND < 3
// Values are merged with each other first: long sums in order would lose the contract.
template <int COUNT, class Column>
MERCER_INLINE void merge_values(FoldState& a, const REAL (&values)[COUNT], int count, const Column&) {
  FoldState all = empty_state();
#pragma unroll
  for (int j = 0; j < COUNT; ++j)
    if (j < count) merge(all, state_of(values[j]));
  merge(a, all);
}
#endif
