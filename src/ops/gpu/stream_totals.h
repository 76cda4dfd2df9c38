// Results of a block of x in a streamed call: parts, one for each block of z, join a total, which goes to its place.
#pragma once

#include "backend/cuda/runtime/kernels.h"
#include "backend/cuda/runtime/staging.h"
#include "backend/cuda/runtime/workspace.h"
#include "ops/gpu/streamed.h"

namespace mercer::ops {

class StreamTotals {
 public:
  /// `type`: the computing type. `features`: of a gradient.
  StreamTotals(const Streamed& call, Dtype type, std::int64_t features);
  /// Compiles the kernels.
  void load(const cuda::PairJob& place);
  std::int64_t row_bytes() const;
  void lay_out(cuda::Workspace& workspace, std::int64_t rows);

  /// Where the verb writes the results of `rows` points of x with a block of z; of neighbours `found` of each.
  Tensor part(const cuda::Workspace& workspace, Device device, std::int64_t rows, std::int64_t found) const;
  Tensor part_indices(const cuda::Workspace& workspace, Device device, std::int64_t rows, std::int64_t found) const;
  /// A block of z that starts at `offset`; the first one of a block of x starts its total.
  void merge(const cuda::Workspace& workspace, const cuda::PairJob& place, std::int64_t rows, std::int64_t found,
             std::int64_t offset, bool is_first);
  /// The total to rows from `row` on of outputs of the device, or to buffer `buffer`.
  void store(const cuda::Workspace& workspace, const cuda::PairJob& place, std::int64_t row, std::int64_t rows,
             int buffer);
  /// That buffer to the outputs of the host.
  void download(cuda::Staging& staging, const cuda::Workspace& workspace, std::int64_t row, std::int64_t rows,
                int buffer) const;

 private:
  bool finds_neighbours() const { return call_.verb == Streamed::Verb::nearest; }
  bool gives_index() const;
  bool has_indices() const { return finds_neighbours() || gives_index(); }
  std::int64_t row_values() const { return planes_ * width_; }
  /// Out of a kernel's total to one output, whose buffers are at `places`.
  void store_one(const cuda::Workspace& workspace, const cuda::PairJob& place, const char* kernel, const void* from,
                 const Tensor& out, std::int64_t row, std::int64_t rows, const std::int64_t* places, int buffer) const;
  void download_one(cuda::Staging& staging, const cuda::Workspace& workspace, const Tensor& out, std::int64_t row,
                    std::int64_t rows, std::int64_t from) const;

  const Streamed& call_;
  Dtype type_;
  std::int64_t planes_ = 1, width_ = 1, real_ = 4;
  cuda::Kernel kernels_;
  std::int64_t part_ = 0, part_index_ = 0;
  std::int64_t totals_[2] = {}, total_indices_[2] = {};  // neighbours take turns
  std::int64_t results_[2] = {}, result_indices_[2] = {};
  std::int64_t had_ = 0;  // neighbours of the total
  int turn_ = 0;
};

}  // namespace mercer::ops
