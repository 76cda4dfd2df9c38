// Gradient fields of a linear factor as a product of matrices (kernels/cuda/gradient/linear_field.cuh), of a range of
// n. What it cannot compute within the contract it marks.
#pragma once

#include "backend/cuda/gemm/bilinear.h"

namespace mercer::cuda {

/// Points with their features in a row, in whole 16 bytes.
struct PointRows {
  const void* points = nullptr;  // of the computing type
  std::int64_t step = 0;  // from one to the next
};

class LinearField {
 public:
  /// Lays its memory out in `workspace`; `rows`: of a part.
  LinearField(const FieldKernels& kernels, const PairJob& job, std::int64_t rows, Workspace& workspace);
  /// Outputs of one pass.
  std::int64_t pass() const { return pass_; }
  /// Tells of all rows, of the coefficients [output][ld], n along the rows, and of the points x of a difference. What
  /// depends on those alone is made when the first rows of a pass are contracted.
  void prepare(const FieldArguments& all, const PlainPanel& coefs, const PointRows& x, const Workspace& workspace);
  /// Contracts rows `first` … for outputs of one pass, the first of which is `output`, and marks those that it leaves.
  void run(const FieldArguments& part, std::int64_t first, std::int64_t output, const Workspace& workspace);
  const unsigned char* marks(const Workspace& workspace) const { return workspace.at<unsigned char>(marks_); }

 private:
  struct Side {
    std::int64_t image = 0, norm = 0, scale = 0, ld = 0;
  };
  Side lay_out(std::int64_t count, Workspace& workspace) const;
  LinearSide side(const Side& side, std::int64_t count, const Workspace& workspace) const;
  LinearArguments arguments(const FieldArguments& field, std::int64_t output, const Workspace& workspace) const;
  void write_columns(const FieldArguments& all, std::int64_t output, const Workspace& workspace);
  void launch_step(const char* name, jit::Dim3 grid, LinearArguments& a) const;
  std::int64_t columns(std::int64_t outputs) const;

  const FieldKernels& kernels_;
  const plan::GpuFieldPlan& plan_;
  const PairJob& job_;
  std::int64_t pass_, units_, spread_ld_, products_ld_, ranges_;
  Side row_side_, column_side_;
  std::int64_t state_ = 0, centre_ = 0, largest_ = 0, spread_ = 0, row_largest_ = 0, row_spread_ = 0;
  std::int64_t row_least_ = 0, lossy_ = 0;
  std::int64_t products_ = 0, marks_ = 0, tile_marks_ = 0;
  FieldArguments all_{};
  PointRows x_;
  const float* coefs_ = nullptr;
  std::int64_t coefs_ld_ = 0, written_ = -1;  // the output whose columns are there
};

}  // namespace mercer::cuda
