// Gradient fields on tensor cores (kernels/cuda/gradient/field_products.cuh): operands, products, and marks of what
// they leave to the kernel `field`.
#pragma once

#include "backend/cuda/runtime/job.h"
#include "backend/cuda/runtime/kernels.h"
#include "backend/cuda/runtime/workspace.h"
#include "kernels/cuda/common/arguments.h"

namespace mercer::cuda {

class FieldProducts {
 public:
  /// Bytes that a row's operands take, of so many points z.
  static std::int64_t row_bytes(const plan::GpuFieldPlan& plan, const PairJob& job, std::int64_t points);
  /// Lays its memory out in `workspace`; `rows`: whose operands are made at once.
  FieldProducts(const FieldKernels& kernels, const PairJob& job, std::int64_t outputs, std::int64_t rows,
                Workspace& workspace);
  std::int64_t rows() const { return rows_; }
  /// Outputs of one pass.
  std::int64_t pass() const { return pass_; }
  /// Blocks for so many rows, without ranges of n.
  std::int64_t blocks(std::int64_t rows) const;
  /// Makes the operands of these rows, and of the coefficients of all outputs.
  void prepare(const FieldArguments& rows, const Workspace& workspace) const;
  /// Contracts the rows of `part`, rows `first` … of those prepared, for outputs of pass number `pass`. `wanted`: marks
  /// of rows [m][k / 64], or null; with values in units null.
  void run(const FieldArguments& part, std::int64_t first, std::int64_t pass, std::int64_t splits,
           const unsigned char* wanted, const Workspace& workspace) const;
  /// What is left to be computed of rows `first` … of those prepared.
  const unsigned char* marks(std::int64_t first, const Workspace& workspace) const;

 private:
  FieldProductArguments arguments(const FieldArguments& field, const Workspace& workspace) const;
  std::int64_t stages() const;
  std::int64_t coef_floats() const;  // of a pass
  void measure_coefs(FieldProductArguments pass, std::int64_t number) const;
  void measure_points(const FieldProductArguments& a) const;
  /// Contracts values in units, but for the rows that it marks.
  void run_units(FieldProductArguments& a, std::int64_t splits) const;

  const FieldKernels& kernels_;
  const PairJob& job_;
  std::int64_t outputs_, rows_, pass_, groups_, mark_groups_;
  std::int64_t image_ = 0, codes_ = 0, coefs_ = 0, marks_ = 0;
  std::int64_t ranges_ = 1;  // of n, that rows are examined in
  std::int64_t row_units_ = 0, column_units_ = 0, row_amplitudes_ = 0, row_sums_ = 0, left_ = 0;
  std::int64_t shifts_ = 0, refused_ = 0;
};

}  // namespace mercer::cuda
