// v of products over n with many columns, as the right operand on tensor cores (kernels/cuda/gemm/wide_fold.cuh).
#pragma once

#include "backend/cuda/runtime/job.h"
#include "backend/cuda/runtime/kernels.h"
#include "backend/cuda/runtime/workspace.h"
#include "kernels/cuda/common/arguments.h"

namespace mercer::cuda {

/// Columns of v, in a panel or as they lie: point n of column e is data[n * row + e * column].
struct PlainColumns {
  const float* data = nullptr;
  std::int64_t row = 1, column = 0;
  static PlainColumns of_panel(const PairArguments& group) {
    return {static_cast<const float*>(group.v.data), 1, group.v.ld};
  }
};

/// Columns that a second value is multiplied with, so many floats apart.
struct ExtraColumns {
  const float* data = nullptr;
  std::int64_t ld = 0;
  int columns = 0;
};

class WideOperand {
 public:
  struct Options {
    bool rates = false;     // pieces of 16 bits may be taken in its place
    bool by_fours = false;  // points in the order of stored values
  };
  /// Lays the image out in `workspace`, of one group and one pass over the columns.
  WideOperand(const plan::BilinearTile& tile, const PairJob& job, const Options& options, Workspace& workspace);
  /// Makes it, unless pieces of 16 bits have been taken.
  void write(const PairArguments& group, const PlainColumns& v, const Workspace& workspace,
             const ExtraColumns& extra = {}) const;
  /// As `write`, with the norms of z, for values that are powers of two of products, and v times what those are times.
  void write_powers(const BilinearArguments& group, const PlainColumns& v, const Workspace& workspace) const;
  /// Makes it in pieces of 16 bits (wide_halves.cuh), in the same place: of expanded squares (expanded.h), where they
  /// stand.
  void write_halves(const PairArguments& group, const PlainColumns& v, const Workspace& workspace) const;
  /// As `write_halves` above, with the norms of z, for values that come from products.
  void write_halves(const BilinearArguments& group, const PlainColumns& v, const Workspace& workspace) const;
  const unsigned char* image(const Workspace& workspace) const { return workspace.at<unsigned char>(image_); }

 private:
  std::int64_t blocks() const;
  void launch_halves(const WideArguments& a) const;
  void launch_floats(const WideArguments& a) const;
  WideArguments arguments(const PairArguments& group, const PlainColumns& v, const Workspace& workspace) const;
  WideArguments arguments(const BilinearArguments& group, const PlainColumns& v, const Workspace& workspace) const;

  const plan::BilinearTile& tile_;
  const PairJob& job_;
  Options options_;
  Kernel write_v_;
  std::int64_t image_ = 0;
};

}  // namespace mercer::cuda
