// Gradient fields of a linear factor in float64, as products of matrices (kernels/cuda/gradient/linear_doubles.cuh), of
// a range of n. What it cannot compute within the contract it marks.
#pragma once

#include "backend/cuda/gradient/linear_field.h"

namespace mercer::cuda {

class LinearDoubles {
 public:
  /// Lays its memory out in `workspace`; `rows`: of a part.
  LinearDoubles(const FieldKernels& kernels, const PairJob& job, std::int64_t outputs, std::int64_t rows,
                Workspace& workspace);
  /// Outputs of one pass.
  std::int64_t pass() const { return pass_; }
  /// Tells of all rows, of the coefficients [output][ld], n along the rows, and of the points x of a difference.
  void prepare(const FieldArguments& all, const PlainPanel& coefs, const PointRows& x, const Workspace& workspace);
  /// Contracts rows `first` … for outputs of one pass, the first of which is `output`, and marks those that it leaves.
  void run(const FieldArguments& part, std::int64_t first, std::int64_t output, const Workspace& workspace);
  const unsigned char* marks(const Workspace& workspace) const { return workspace.at<unsigned char>(marks_); }

 private:
  LinearDoublesArguments arguments(const FieldArguments& field, std::int64_t output, const Workspace& workspace) const;
  void write_columns(std::int64_t outputs, std::int64_t output, const Workspace& workspace) const;
  void multiply(const LinearDoublesArguments& a, const Workspace& workspace) const;
  void launch_step(const char* name, std::int64_t blocks, LinearDoublesArguments& a) const;

  const FieldKernels& kernels_;
  const plan::GpuFieldPlan& plan_;
  const PairJob& job_;
  std::int64_t rows_, ld_, pass_ = 1, splits_ = 1;
  std::int64_t centre_ = 0, lengths_ = 0, columns_ = 0, amplitudes_ = 0, row_largest_ = 0, row_sums_ = 0;
  std::int64_t row_spread_ = 0, products_ = 0, refused_ = 0, marks_ = 0;
  FieldArguments all_{};
  PointRows x_;
  const double* coefs_ = nullptr;
  std::int64_t coefs_ld_ = 0, written_ = -1;  // the output whose columns are there
};

}  // namespace mercer::cuda
