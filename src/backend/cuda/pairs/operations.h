// The CUDA drivers: each puts the kernels of a call into its stream and returns. Arguments are checked by ops/ before.
#pragma once

#include "backend/cuda/runtime/job.h"
#include "backend/cuda/runtime/kernels.h"

namespace mercer::cuda {

/// out[..., m, n]. `symmetric`: only tiles on and above the diagonal are computed, the others mirrored.
void pairwise(const PairKernels& kernels, const PairJob& job, const JobMatrix& out, bool symmetric);

/// out[..., m, e] = sum over n of f(x_m, z_n) v[..., n, e]: v [N, E], out [M, E].
void product(const PairKernels& kernels, const PairJob& job, const JobOperand& v, std::int64_t columns,
             const JobMatrix& out);
/// As above, with values of the pairs that are stored, some rows and points n at a time (plan/gpu/value_products.h).
void product(const PairKernels& pairs, const FieldKernels& field, const PairJob& job, const JobOperand& v,
             std::int64_t columns, const JobMatrix& out);

/// out[..., m] = fold over n (kernels.plan->problem.fold).
void reduce(const PairKernels& kernels, const PairJob& job, const JobMatrix& out);

/// The `count` smallest values of each row and their columns: [..., M, count].
void nearest(const PairKernels& kernels, const PairJob& job, std::int64_t count, const JobMatrix& values,
             const JobMatrix& indices);

/// out[..., o, m, k] = sum over n of coef[..., o, n] * φ. The values of the pairs come from `pairs`; where that is
/// null, from `amplitude` [M, N]. With `rows` [M, O] there is one result, out[..., m, k], the sum over o of rows[m][o]
/// times these; so there is `by_matrix`, where `amplitude` weighs what `pairs` gives, without coefficients. With `v`
/// [N, columns] in place of the points z, whose features those are, it is a product of the values with v, and has no
/// coefficients.
struct FieldJob {
  JobOperand coef;  // rows: outputs, columns: n
  std::int64_t outputs = 1;
  JobOperand amplitude, rows, v;
  bool by_matrix = false;
  std::int64_t columns = 0;
  void* out = nullptr;
  std::int64_t out_output_stride = 0, out_row_stride = 0, out_feature_stride = 0;
  std::vector<std::int64_t> out_batch_strides;

  /// Results that a pass with one output also computes: [..., r, m], sums over n with the weights of the pairs;
  /// [..., m, o], sums of a value with the coefficients; [..., k, m], sums of another field.
  struct ExtraOutput {
    void* data = nullptr;
    std::int64_t first_stride = 0, second_stride = 0;
    std::vector<std::int64_t> batch_strides;
  };
  ExtraOutput sums, product, extra;

  bool has_rows() const { return rows.array.data != nullptr; }
  bool has_v() const { return v.array.data != nullptr; }
  std::int64_t results() const { return has_rows() ? 1 : outputs; }
};
/// How kernels that take 16 bytes of a row or column at once read a matrix [M, N]; padded: not where it lies.
plan::StoredValues lie_of(const PairJob& job, const JobOperand& matrix);
/// `field` is null where the kernels of `pairs` do all: of few features, or of a linear factor with `rows`. `extra`:
/// the kernels of the extra field, of the same values of the pairs, where `field` has one.
void gradient(const PairKernels* pairs, const FieldKernels* field, const PairJob& job, const FieldJob& operands,
              const FieldKernels* extra = nullptr);

}  // namespace mercer::cuda
