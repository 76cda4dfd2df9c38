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

/// Pairs of many small items of a batch.
template <class T>
struct ItemBlock {
  const T *const *x, *const *z;      // the first points of each item
  std::int64_t x_stride, z_stride;   // elements from one point to the next
  std::int64_t items, rows, cols, features;
  T* out;                            // [items][rows][cols]
  T* scratch;                        // item_scratch(…) elements
};

/// For lanes of any instruction set: a value of each point, and of each pair, of as many items as have a lane.
template <class T>
constexpr std::int64_t item_scratch(std::int64_t rows, std::int64_t cols, std::int64_t features) {
  return ((rows + cols) * features + rows * cols) * static_cast<std::int64_t>(64 / sizeof(T));
}

/// Gradients by the points of both sides of a block of pairs, of (x - z)^2 or x z: what a pair adds is its slope times
/// the difference or the other point. Lines are whole vectors of features, with zeros after the last one.
template <class T>
struct FieldBlock {
  const T* slopes;                   // [rows][slope_stride]
  std::int64_t slope_stride;
  const T *x, *z;                    // [rows][features], [cols][features]
  std::int64_t rows, cols, features;
  T *by_x, *by_z;                    // as x and z, added to
};

/// Values of a block of pairs, and factors of their rows and columns. Lines of columns are whole vectors.
template <class T>
struct FactorBlock {
  T* values;                         // [rows][stride]
  std::int64_t stride;
  std::int64_t rows, cols, factors;
  const T* of_rows;                  // [rows][factors]
  const T* of_cols;                  // [factors][stride]
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
  /// Sums of the pairs of many items, with the bits of those for few features.
  void (*items_of_float[plan::cpu::kPairSums])(const ItemBlock<float>& block);
  void (*items_of_double[plan::cpu::kPairSums])(const ItemBlock<double>& block);
  /// Fields of products and squares; null for other sums.
  void (*fields_of_float[plan::cpu::kPairSums])(const FieldBlock<float>& block);
  void (*fields_of_double[plan::cpu::kPairSums])(const FieldBlock<double>& block);
  /// Values times the sum over the factors of those of the row and of the column.
  void (*weigh_float)(const FactorBlock<float>& block);
  void (*weigh_double)(const FactorBlock<double>& block);
  /// out[factor][col] += the sum over the rows of values times their factors; out[row][factor] likewise of columns.
  void (*to_cols_float)(const FactorBlock<float>& block, float* out);
  void (*to_cols_double)(const FactorBlock<double>& block, double* out);
  void (*to_rows_float)(const FactorBlock<float>& block, double* out);
  void (*to_rows_double)(const FactorBlock<double>& block, double* out);
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
  void items(plan::cpu::PairSum sum, const ItemBlock<float>& b) const { items_of_float[static_cast<int>(sum)](b); }
  void items(plan::cpu::PairSum sum, const ItemBlock<double>& b) const { items_of_double[static_cast<int>(sum)](b); }
  void fields(plan::cpu::PairSum sum, const FieldBlock<float>& b) const { fields_of_float[static_cast<int>(sum)](b); }
  void fields(plan::cpu::PairSum sum, const FieldBlock<double>& b) const { fields_of_double[static_cast<int>(sum)](b); }
  void weigh(const FactorBlock<float>& block) const { weigh_float(block); }
  void weigh(const FactorBlock<double>& block) const { weigh_double(block); }
  void to_cols(const FactorBlock<float>& block, float* out) const { to_cols_float(block, out); }
  void to_cols(const FactorBlock<double>& block, double* out) const { to_cols_double(block, out); }
  void to_rows(const FactorBlock<float>& block, double* out) const { to_rows_float(block, out); }
  void to_rows(const FactorBlock<double>& block, double* out) const { to_rows_double(block, out); }
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
