// One field of values of the pairs that are stored some rows at a time (gradient.cpp): these rows, contracted over a
// range of the points z.
#pragma once

#include <optional>

#include "backend/cuda/gemm/stored_product.h"
#include "backend/cuda/gradient/field_products.h"
#include "backend/cuda/gradient/linear_doubles.h"
#include "backend/cuda/gradient/linear_field.h"

namespace mercer::cuda {

/// Where a field goes; strides in elements.
struct FieldResult {
  void* data = nullptr;
  std::int64_t output_stride = 0, row_stride = 0, feature_stride = 0;
};

/// Rows m of a part, and those whose operands are made at once: of all parts, or of one.
struct FieldRows {
  std::int64_t part = 0, operands = 0;
};

/// Whether a range of z is added to what others left, and whether there are others at all.
struct RangePlace {
  bool adds = false, several = false;
};

class FieldContraction {
 public:
  /// Bytes that a row's operands take, of so many points z.
  static std::int64_t row_bytes(const FieldKernels& kernels, const PairJob& job, std::int64_t points) {
    return kernels.plan->products ? FieldProducts::row_bytes(*kernels.plan, job, points) : 0;
  }

  /// Lays its memory out in `workspace`. `job`: what is contracted with the values.
  FieldContraction(const FieldKernels& kernels, const PairJob& job, const FieldResult& result, std::int64_t outputs,
                   const FieldRows& rows, const RangePlace& range, Workspace& workspace);

  const FieldResult& result() const { return result_; }
  /// Tells of all rows, before the first part. For a linear factor: the coefficients, n along the rows, and the points.
  void prepare(const FieldArguments& all, const PlainPanel& coefs, const PointRows& x);
  /// Makes operands of these rows, of which each part has some.
  void prepare_rows(const FieldArguments& rows) const;
  /// Rows `first` … of a part, all outputs. What `part` does not say is where its results go.
  void run(const FieldArguments& part, std::int64_t first);

 private:
  std::int64_t choose_splits() const;
  /// Results do not go where the caller wants them, but are added up there.
  bool is_partial() const { return !stored_ && (splits_ > 1 || range_.adds); }
  void contract(FieldArguments all, std::int64_t first, std::int64_t output);
  void launch_field(const FieldArguments& all, std::int64_t first, const unsigned char* left) const;
  void add_up(const FieldArguments& all, void* out) const;

  const FieldKernels& kernels_;
  const plan::GpuFieldPlan& plan_;
  const PairJob& job_;
  const FieldResult result_;
  const std::int64_t outputs_;
  const FieldRows rows_;
  const RangePlace range_;
  Workspace& workspace_;
  std::optional<FieldProducts> products_;
  std::optional<LinearField> linear_;
  std::optional<LinearDoubles> doubles_;
  std::optional<StoredProduct> stored_;
  std::int64_t size_, splits_ = 1, pass_ = 1, partial_ = 0;
};

}  // namespace mercer::cuda
