// Sums over the features of pairs of a few points, read where they lie: vectors go along the features, so that nothing
// is packed and a point more costs a point more. One source, compiled per instruction set (pair_sums.inc).
//
//            z0   z1   z2   z3          a block of at most 4 x 4 accumulators, whose lanes are added up at the end
//   x0  ──▶  acc  acc  acc  acc
//   x1  ──▶  acc  acc  acc  acc         a pair's sum is made of the same operations whatever block it is in
#pragma once

#include <cstdint>

#include "mercer/device.h"
#include "plan/cpu/forms.h"

namespace mercer::cpu {

template <class T>
struct SumBlock {
  const T *x, *z;                    // features side by side
  std::int64_t x_stride, z_stride;   // elements from one point to the next
  std::int64_t rows, cols, features;
  T* out;                            // [rows][cols]
  std::int64_t out_stride;
};

/// What an instruction set has of it.
struct SumKernels {
  template <class T>
  using Sums = void (*)(const SumBlock<T>& block);
  Sums<float> of_float[plan::cpu::kPairSums];    // by PairSum; null for `none`
  Sums<double> of_double[plan::cpu::kPairSums];
  /// The sums for few features: z is stored as [features][z_stride]; lines of z and of the output are whole vectors.
  Sums<float> columns_of_float[plan::cpu::kPairSums];
  Sums<double> columns_of_double[plan::cpu::kPairSums];
  /// The sum of the squares of features side by side, in double.
  double (*squares_of_float)(const float* values, std::int64_t count);
  double (*squares_of_double)(const double* values, std::int64_t count);
  /// Whether a value is 0, nearer to it than `least` or not below `most`; NaN is not.
  bool (*any_outside_float)(const float* values, std::int64_t count, float least, float most);
  bool (*any_outside_double)(const double* values, std::int64_t count, double least, double most);

  Sums<float> sums(plan::cpu::PairSum sum, float) const { return of_float[static_cast<int>(sum)]; }
  Sums<double> sums(plan::cpu::PairSum sum, double) const { return of_double[static_cast<int>(sum)]; }
  Sums<float> columns(plan::cpu::PairSum sum, float) const { return columns_of_float[static_cast<int>(sum)]; }
  Sums<double> columns(plan::cpu::PairSum sum, double) const { return columns_of_double[static_cast<int>(sum)]; }
  double squares(const float* values, std::int64_t count) const { return squares_of_float(values, count); }
  double squares(const double* values, std::int64_t count) const { return squares_of_double(values, count); }
  bool any_outside(const float* v, std::int64_t count, float least, float most) const {
    return any_outside_float(v, count, least, most);
  }
  bool any_outside(const double* v, std::int64_t count, double least, double most) const {
    return any_outside_double(v, count, least, most);
  }
};

/// The kernels of a target; the interpreter's are of plain x86-64.
const SumKernels& sum_kernels(Target target);

const SumKernels& sum_kernels_baseline();
const SumKernels& sum_kernels_avx2();
const SumKernels& sum_kernels_avx512();

}  // namespace mercer::cpu
