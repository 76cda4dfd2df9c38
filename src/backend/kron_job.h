// A product with a Kronecker product, as back ends get it: arguments checked, batches broadcast, transposes and sides
// turned into strides. kron_matmul is the matmul of the transposes, so one form is left:
//
//   for item in outer                                    factors vary along these axes of the batch
//     for m in rows                                      x, y and out alone do, or nothing but M is left
//       out[m, j] = alpha sum_k x[m, k] prod_i F_i[k_i, j_i] + beta y[m, j]
//
// k = (k_1, ..., k_N) and j = (j_1, ..., j_N) with the last index fastest. Strides count elements; 0 is a broadcast.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/dense_job.h"
#include "mercer/pairwise.h"
#include "mercer/tensor.h"

namespace mercer {

/// x, y or out: element (item, m, k) lies offset(item) + offset(m) + k * stride elements after data.
struct KronArray {
  char* data = nullptr;
  std::int64_t stride = 1;  // of k or j
  std::vector<std::int64_t> outer_strides = {}, row_strides = {};
};

/// F_i[p, q], p an index of x and q one of out.
struct KronFactor {
  const char* data = nullptr;
  std::int64_t p = 1, q = 1;
  std::int64_t p_stride = 1, q_stride = 1;
  std::vector<std::int64_t> outer_strides = {};
};

struct KronJob {
  const char* op = "";
  Dtype dtype = Dtype::float32;  // of all arrays
  int device = 0;
  const Queue* queue = nullptr;
  const ProgressCallback* progress = nullptr;
  std::vector<std::int64_t> outer = {}, rows = {};  // extents; neighbouring axes that step alike are one
  std::int64_t items = 1, row_count = 1;            // their products
  std::int64_t k = 1, j = 1;                        // products of p and of q
  std::vector<KronFactor> factors = {};
  KronArray x = {}, y = {}, out = {};  // y has no data where beta is 0
  double alpha = 1, beta = 0;          // whole numbers for whole dtypes
  bool in_place = false;               // out is the very view x

  /// The type in which values are computed: float32 for 16 bits, else dtype.
  Dtype type() const { return is_whole(dtype) ? dtype : compute_type(dtype); }
  std::int64_t item_offset(const std::vector<std::int64_t>& strides, std::int64_t item) const {
    return DenseJob::offset(item, outer, strides);
  }
  std::int64_t row_offset(const KronArray& array, std::int64_t row) const {
    return DenseJob::offset(row, rows, array.row_strides);
  }
};

}  // namespace mercer
