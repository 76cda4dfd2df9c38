// Turns a tile of sums into values in the output, for drivers that make the sums themselves: by the epilogue of the
// plan, or by a copy where values are the sums.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cpu/pairs/operations.h"

namespace mercer::cpu {

template <class T>
struct SumTile {
  std::int64_t m, n, rows, cols;       // where it lies, and how much of it counts
  T* sums = nullptr;                   // [rows][stride]
  std::int64_t stride = 0;
  const T *row_slots = nullptr, *col_slots = nullptr;  // of the side's first point
  T* values = nullptr;                 // [rows][columns of a tile], scratch
};

template <class T>
class TileOutput {
 public:
  TileOutput(const PairProgram& program, const ParamBlock<T>& params)
      : program_(program), params_(params), cols_(program.plan().tile.cols()) {
    const plan::PairPlan& plan = program.plan();
    is_fast_ = plan.has_fast && plan.fast.magnitudes.least == 0 && params.fast_epilogue;
    if (!program.forms.is_bare) epilogue_ = program.kernels.variant(is_fast_).epilogue.get();
  }

  bool is_bare() const { return epilogue_ == nullptr; }
  static bool is_direct(const OutputMatrix& out) { return out.dtype == dtype_of<T>() && out.col_stride == 1; }
  /// Where a value of an output lies that is direct.
  static T* at(const OutputMatrix& out, std::int64_t m, std::int64_t n) {
    return static_cast<T*>(out.data) + m * out.row_stride + n;
  }

  /// One value for all pairs of a tile.
  void fill(const SumTile<T>& tile, T value, const OutputMatrix& out) const {
    std::fill_n(tile.values, tile.rows * cols_, value);
    copy(tile.values, cols_, tile, out);
  }
  /// Sums that already lie in the output are left there.
  void write(const SumTile<T>& tile, const OutputMatrix& out) const {
    if (epilogue_ == nullptr) {
      if (!is_direct(out) || tile.sums != at(out, tile.m, tile.n)) copy(tile.sums, tile.stride, tile, out);
      return;
    }
    const bool whole = is_direct(out) && tile.cols == cols_;
    plan::EpilogueArgs args{};
    args.acc = tile.sums;
    args.row = tile.row_slots + tile.m * program_.packs.x.slots;
    args.col = tile.col_slots + tile.n * program_.packs.z.slots;
    args.params = (is_fast_ ? params_.fast : params_.general).data();
    args.out = whole ? at(out, tile.m, tile.n) : tile.values;
    args.out_stride = (whole ? out.row_stride : cols_) * static_cast<std::int64_t>(sizeof(T));
    args.rows = tile.rows;
    (*epilogue_)(args);
    if (!whole) copy(tile.values, cols_, tile, out);
  }

 private:
  static void copy(const T* from, std::int64_t stride, const SumTile<T>& tile, const OutputMatrix& out) {
    if (out.dtype != dtype_of<T>() || out.col_stride == 1)
      return write_block<T>(from, stride, tile.rows, tile.cols, out, tile.m, tile.n);
    T* const to = static_cast<T*>(out.data) + tile.m * out.row_stride + tile.n * out.col_stride;
    for (std::int64_t c = 0; c < tile.cols; ++c)
      for (std::int64_t r = 0; r < tile.rows; ++r)
        to[c * out.col_stride + r * out.row_stride] = from[r * stride + c];
  }

  const PairProgram& program_;
  const ParamBlock<T>& params_;
  const int cols_;
  bool is_fast_ = false;
  const jit::EpilogueKernel* epilogue_ = nullptr;  // null: values are the sums
};

/// What values read of one side: `width` points a panel.
template <class T>
void pack_side_slots(const PackPrograms::Side& side, const Points& points, int width, const double* weights,
                     const std::vector<double>& params, AlignedBuffer& slots) {
  const Packer<T> packer(side, points, width, weights, params);
  slots.reserve(packer.panels() * packer.slots_size() * static_cast<std::int64_t>(sizeof(T)));
  for (std::int64_t p = 0; p < packer.panels(); ++p) packer.pack_slots(p, slots.as<T>() + p * packer.slots_size());
}

}  // namespace mercer::cpu
