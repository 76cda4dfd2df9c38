// out[o, m, k] = sum over n of coef[o, n] φ(x[m, k], z[n, k], pair values of (m, n)): two sweeps.
//
//   1. pair values   for a panel of rows of x and a block of columns n: the tiles of pairwise, [slot][row][n], in cache
//   2. field         for each row m, panel of features and tile of outputs: accumulators over n in registers
//
// Sums over n run in the computing type over a block, about 192 points, then in double. Pair values that are factors of
// φ are folded into the coefficients, once per (m, n, o) instead of once per (m, n, k). An amplitude that the caller
// gives is the last pair value. The fast variant of φ runs where all values of the row of x and of the block of z are
// of its magnitudes.
#include <algorithm>

#include "backend/cpu/operations.h"
#include "core/integers.h"

namespace mercer::cpu {
namespace {

struct Workspace {
  AlignedBuffer x_pairs, x_slots, pairs, scaled, row, partial, sums;
  TileScratch tiles;
};

template <class T>
class GradientRun {
 public:
  GradientRun(const PairProgram* pairs, const FieldProgram& field, const FieldItem& item, const RunOptions& run)
      : field_(field), plan_(*field.plan), item_(item), run_(run), features_(item.item.x.features),
        cols_(plan_.source(false).cols()), padded_(round_up(features_, cols_)), width_(plan_.n_capacity) {
    if (pairs && !pairs->plan().problem.outputs.empty()) {
      block_.emplace_back(pairs->plan(), item.pair_params, features_);
      engine_.emplace_back(*pairs, item.item, block_[0]);
    }
    const std::vector<double> params = with_uniforms(plan_.uniforms, item.field_params, features_);
    params_.assign(params.begin(), params.end());
    if (!engine_.empty()) rows_ = engine_[0].tile().rows;
  }

  void operator()() {
    pack_rows(item_.item.z, z_);
    find_finite_blocks();
    pack_weights();
    pack_coefficients();
    if (!engine_.empty()) z_pairs_.pack(engine_[0].z_packer(), 0, engine_[0].z_packer().panels(), *run_.pool);
    pack_point_values(item_.item.z, z_values_, round_up(item_.item.z.count, width_));
    workspaces_.resize(run_.workers);
    const std::int64_t count = item_.item.x.count;
    run_(ceil_div(count, rows_),
         [&](std::int64_t task, int worker) { run_panel(task, workspaces_[worker]); });
  }

 private:
  /// Row-major [count][padded] copy in the computing type, padded with zeros.
  void pack_rows(const Points& points, AlignedBuffer& target) {
    target = aligned_array<T>(checked_product({points.count, padded_}));
    run_.pool->run(points.count, [&](std::int64_t p, int) { pack_row(points, p, target.as<T>() + p * padded_); });
  }

  void find_finite_blocks() {
    const std::int64_t points = item_.item.z.count;
    for (std::int64_t n0 = 0; n0 < points; n0 += width_) {
      const std::int64_t present = std::min<std::int64_t>(width_, points - n0);
      z_finite_.push_back(all_within(plan_.magnitudes, z_.as<T>() + n0 * padded_, present * padded_));
    }
  }

  void pack_row(const Points& points, std::int64_t p, T* row) const {
    const std::int64_t first = p * points.point_stride;
    for (std::int64_t k = 0; k < features_; ++k)
      row[k] = static_cast<T>(read_element(points.data, points.dtype, first + k * points.feature_stride));
    std::fill(row + features_, row + padded_, T(0));
  }

  void pack_weights() {
    weights_.assign(padded_, T(1));
    if (item_.item.weights) std::copy_n(item_.item.weights, features_, weights_.begin());
  }

  std::int64_t tiles() const { return ceil_div(item_.outputs, plan_.outputs); }

  /// [tile][n][outputs of the tile], zeros beyond the last output.
  void pack_coefficients() {
    const std::int64_t points = item_.item.z.count;
    coef_ = aligned_array<T>(checked_product({tiles(), points, plan_.outputs}));
    T* target = coef_.as<T>();
    for (std::int64_t t = 0; t < tiles(); ++t)
      for (std::int64_t n = 0; n < points; ++n)
        for (int h = 0; h < plan_.outputs; ++h) {
          const std::int64_t o = t * plan_.outputs + h;
          const std::int64_t index = o * item_.coef_output_stride + n * item_.coef_point_stride;
          *target++ = o < item_.outputs ? static_cast<T>(read_element(item_.coef, item_.coef_dtype, index)) : T(0);
        }
  }

  /// [block of width_][slot][width_]: the caller's value and the index, for fields that read col or j.
  void pack_point_values(const Points& points, std::vector<T>& values, std::int64_t padded) const {
    values.assign(2 * padded, T(0));
    for (std::int64_t n = 0; n < points.count; ++n) {
      T* block = values.data() + n / width_ * 2 * width_;
      block[plan::kUserSlot * width_ + n % width_] = static_cast<T>(points.user[n]);
      block[plan::kIndexSlot * width_ + n % width_] = static_cast<T>(n + points.index_offset);
    }
  }

  void run_panel(std::int64_t panel, Workspace& w) {
    const std::int64_t m0 = panel * rows_, count = std::min<std::int64_t>(rows_, item_.item.x.count - m0);
    const std::int64_t state = tiles() * plan_.outputs * padded_;
    w.sums.reserve(rows_ * state * sizeof(double));
    w.row.reserve(rows_ * padded_ * sizeof(T));
    w.partial.reserve(plan_.outputs * cols_ * sizeof(T));
    w.scaled.reserve(width_ * plan_.outputs * sizeof(T));
    std::fill_n(w.sums.as<double>(), rows_ * state, 0.0);
    for (std::int64_t r = 0; r < count; ++r) pack_row(item_.item.x, m0 + r, w.row.as<T>() + r * padded_);
    PanelKind kind = PanelKind::finite;
    if (!engine_.empty()) {
      const Packer<T>& x = engine_[0].x_packer();
      w.x_pairs.reserve(x.panel_size() * sizeof(T));
      w.x_slots.reserve(x.slots_size() * sizeof(T));
      w.tiles.acc.reserve(engine_[0].accumulator_size() * sizeof(T));
      kind = x.pack(panel, w.x_pairs.as<T>(), w.x_slots.as<T>());
    }
    for (std::int64_t n0 = 0; n0 < item_.item.z.count; n0 += width_) {
      const std::int64_t present = std::min<std::int64_t>(width_, item_.item.z.count - n0);
      w.pairs.reserve((planes() + 1) * rows_ * width_ * sizeof(T));
      if (!engine_.empty()) compute_pairs(panel, n0, present, kind, w);
      if (item_.amplitude) read_amplitude(m0, count, n0, present, w.pairs.as<T>() + planes() * rows_ * width_);
      for (std::int64_t r = 0; r < count; ++r) accumulate_row(m0 + r, r, n0, present, w);
    }
    for (std::int64_t r = 0; r < count; ++r) write_row(m0 + r, w.sums.as<double>() + r * state);
  }

  /// Pair values that the engine computes.
  std::int64_t planes() const {
    return engine_.empty() ? 0 : static_cast<std::int64_t>(engine_[0].plan().general.epilogue.outputs.size());
  }

  /// w.pairs[slot][row][width_] for columns n0 … n0 + present - 1.
  void compute_pairs(std::int64_t panel, std::int64_t n0, std::int64_t present, PanelKind kind, Workspace& w) {
    const PairEngine<T>& engine = engine_[0];
    const std::int64_t tile_cols = engine.tile().cols();
    for (std::int64_t n = n0; n < n0 + present; n += tile_cols) {
      const PanelView<T> rows{w.x_pairs.as<T>(), w.x_slots.as<T>(), panel, kind};
      engine.compute(rows, z_pairs_.view(n / tile_cols), w.tiles, w.pairs.as<T>() + (n - n0), width_);
    }
  }

  /// The caller's amplitudes of the same columns, [row][width_].
  void read_amplitude(std::int64_t m0, std::int64_t count, std::int64_t n0, std::int64_t present, T* plane) const {
    for (std::int64_t r = 0; r < count; ++r)
      for (std::int64_t n = 0; n < present; ++n) {
        const std::int64_t index = (m0 + r) * item_.amplitude_row_stride + (n0 + n) * item_.amplitude_col_stride;
        plane[r * width_ + n] = static_cast<T>(read_element(item_.amplitude, item_.amplitude_dtype, index));
      }
  }

  void accumulate_row(std::int64_t m, std::int64_t r, std::int64_t n0, std::int64_t present, Workspace& w) {
    const Points& x = item_.item.x;
    const T row_values[2] = {static_cast<T>(x.user[m]), static_cast<T>(m + x.index_offset)};
    const T* row = w.row.as<T>() + r * padded_;
    const bool fast = field_.fast_kernel && z_finite_[n0 / width_] && all_within(plan_.magnitudes, row, padded_);
    const jit::FieldKernel& kernel = fast ? *field_.fast_kernel : *field_.kernel;
    plan::FieldArgs args{};
    args.params = params_.data();
    args.row = row_values;
    args.col = z_values_.data() + n0 / width_ * 2 * width_;
    args.pair = w.pairs.as<T>() + r * width_;
    args.acc = w.partial.as<T>();
    args.z_stride = padded_ * static_cast<std::int64_t>(sizeof(T));
    args.n = present;
    double* sums = w.sums.as<double>() + r * tiles() * plan_.outputs * padded_;
    for (std::int64_t t = 0; t < tiles(); ++t) {
      args.coef = coefficients(t, r, n0, present, w);
      for (std::int64_t k0 = 0; k0 < padded_; k0 += cols_) {
        args.x = row + k0;
        args.z = z_.as<T>() + n0 * padded_ + k0;
        args.w = weights_.data() + k0;
        kernel(args);
        for (int h = 0; h < plan_.outputs; ++h)
          for (std::int64_t c = 0; c < cols_; ++c)
            sums[(t * plan_.outputs + h) * padded_ + k0 + c] += static_cast<double>(w.partial.as<T>()[h * cols_ + c]);
      }
    }
  }

  /// [n][outputs of the tile], times the pair values that are factors of φ.
  const T* coefficients(std::int64_t tile, std::int64_t r, std::int64_t n0, std::int64_t present, Workspace& w) const {
    const T* coef = coef_.as<T>() + (tile * item_.item.z.count + n0) * plan_.outputs;
    T* scaled = w.scaled.as<T>();
    for (const int slot : plan_.scale_slots) {
      const T* scale = w.pairs.as<T>() + r * width_ + slot * static_cast<std::int64_t>(plan_.pair_stride);
      for (std::int64_t n = 0; n < present; ++n)
        for (int h = 0; h < plan_.outputs; ++h) scaled[n * plan_.outputs + h] = coef[n * plan_.outputs + h] * scale[n];
      coef = scaled;
    }
    return coef;
  }

  void write_row(std::int64_t m, const double* sums) const {
    for (std::int64_t o = 0; o < item_.outputs; ++o) {
      T* row = static_cast<T*>(item_.out) + o * item_.out_output_stride + m * item_.out_row_stride;
      for (std::int64_t k = 0; k < features_; ++k)
        row[k * item_.out_feature_stride] = static_cast<T>(sums[o * padded_ + k]);
    }
  }

  const FieldProgram& field_;
  const plan::FieldPlan& plan_;
  const FieldItem& item_;
  RunOptions run_;
  std::int64_t features_, cols_, padded_, width_;
  std::int64_t rows_ = plan::kManyRows;   // of x in a task: a tile's, where there are tiles
  std::vector<ParamBlock<T>> block_;      // at most one
  std::vector<PairEngine<T>> engine_;     // empty: no pair value is computed
  std::vector<T> params_, weights_, z_values_;
  AlignedBuffer z_, coef_;
  std::vector<std::uint8_t> z_finite_;    // per block of width_ points
  PackedSide<T> z_pairs_;
  std::vector<Workspace> workspaces_;
};

}  // namespace

void gradient(const PairProgram* pairs, const FieldProgram& field, const FieldItem& item, const RunOptions& run) {
  if (field.plan->type == Dtype::float64) GradientRun<double>(pairs, field, item, run)();
  else GradientRun<float>(pairs, field, item, run)();
}

}  // namespace mercer::cpu
