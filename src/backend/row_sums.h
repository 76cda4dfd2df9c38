// What operators do with columns apart from their products: rows are scaled, multiples added and points gathered.
#pragma once

#include <cstdint>
#include <vector>

#include "mercer/pairwise.h"
#include "mercer/tensor.h"

namespace mercer {

/// out[i, j] = sqrt(weights[i]) from[i, j] + (amount + ridges[i]) v[i, j], without what is null. All are of one type,
/// float32 or float64, in which sums are double: from, v and out [n, columns] and the others [n], of any strides. out
/// may be the view from or v.
struct RowSum {
  const Tensor* from = nullptr;
  const Tensor* weights = nullptr;
  const Tensor* v = nullptr;
  double amount = 0;
  const Tensor* ridges = nullptr;
};

namespace cpu {
void sum_rows(const RowSum& sum, const Tensor& out);
/// Rows of a matrix of any type, or elements of a vector, one after another.
void gather_rows(const Tensor& from, const std::vector<std::int64_t>& indices, void* to);
}  // namespace cpu
namespace cuda {
/// Sums in the stream of the queue; nothing is done in a dry run.
void sum_rows(const char* op, const RowSum& sum, const Tensor& out, const Queue& queue);
/// `indices` is memory of the device for the indices.
void gather_rows(const char* op, const Tensor& from, const std::vector<std::int64_t>& rows, std::int64_t* indices,
                 void* to, const Queue& queue);
}  // namespace cuda

}  // namespace mercer
