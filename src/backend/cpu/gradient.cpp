// out[o, m, k] = sum over n of coef[o, n] φ(x[m, k], z[n, k], pair values of (m, n)): two sweeps.
//
//   1. pair values   for a panel of rows of x and a block of columns n: the tiles of pairwise, [slot][row][n], in cache
//   2. field         for some points n of the block, panel of features and tile of outputs, and some rows m at a time:
//                    accumulators over n in registers; points n of a panel lie together, and so many of them that the
//                    first-level cache keeps them from rows to rows
//
// Sums over n run in the computing type over these points, at most a block, then in double. Pair values that are
// factors of φ are folded into the coefficients, once per (m, n, o) instead of once per (m, n, k). An amplitude that
// the caller gives is the last pair value. The fast variant of φ runs where all values of the rows of x and of the
// block of z are of its magnitudes.
#include <algorithm>
#include <array>
#include <utility>

#include "backend/cpu/operations.h"
#include "core/integers.h"
#include "plan/registers.h"

namespace mercer::cpu {
namespace {

struct Workspace {
  AlignedBuffer x_pairs, x_slots, pairs, scaled, row, one, partial, sums;
  std::vector<std::uint8_t> finite;  // of rows that go together
  TileScratch tiles;
};

/// Of points n that stay in the first-level cache, of coefficients of rows that share them in the second.
constexpr std::int64_t kPointBytes = 24 << 10, kCoefficientBytes = 64 << 10;

/// Coefficients [points][OUTPUTS] times a value of each point, by loops that compilers make ones of vectors.
template <class T, int OUTPUTS>
void scale_points(T* to, const T* coef, const T* scale, std::int64_t points) {
  for (std::int64_t n = 0; n < points; ++n)
    for (int h = 0; h < OUTPUTS; ++h) to[n * OUTPUTS + h] = coef[n * OUTPUTS + h] * scale[n];
}
template <class T, std::size_t... OUTPUTS>
constexpr auto scale_table(std::index_sequence<OUTPUTS...>) {
  return std::array{scale_points<T, static_cast<int>(OUTPUTS) + 1>...};
}

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
    padded_rows_ = round_up(rows_, std::int64_t{plan_.rows});
    points_ = std::clamp<std::int64_t>(kPointBytes / (cols_ * static_cast<std::int64_t>(sizeof(T))), 1, width_);
    const std::int64_t of_row = tiles() * width_ * plan_.outputs * static_cast<std::int64_t>(sizeof(T));
    const std::int64_t fitting = kCoefficientBytes / of_row / plan_.rows * plan_.rows;
    together_ = plan_.scale_slots.empty() ? padded_rows_ : std::clamp<std::int64_t>(fitting, plan_.rows, padded_rows_);
  }

  void operator()() {
    pack_points();
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
  static constexpr auto kScale = scale_table<T>(std::make_index_sequence<plan::kMostFieldOutputs>());

  /// z as [panel of features][point][cols_], in the computing type, padded with zeros.
  void pack_points() {
    const Points& points = item_.item.z;
    z_ = aligned_array<T>(checked_product({points.count, padded_}));
    std::vector<AlignedBuffer> rows(static_cast<std::size_t>(run_.workers));
    run_.pool->run(points.count, [&](std::int64_t p, int worker) {
      AlignedBuffer& row = rows[static_cast<std::size_t>(worker)];
      row.reserve(padded_ * sizeof(T));
      pack_row(points, p, row.as<T>());
      for (std::int64_t k0 = 0; k0 < padded_; k0 += cols_)
        std::copy_n(row.as<T>() + k0, cols_, z_.as<T>() + k0 * points.count + p * cols_);
    });
  }

  void find_finite_blocks() {
    const std::int64_t points = item_.item.z.count;
    for (std::int64_t n0 = 0; n0 < points; n0 += width_) {
      const std::int64_t present = std::min<std::int64_t>(width_, points - n0);
      bool within = true;
      for (std::int64_t k0 = 0; k0 < padded_; k0 += cols_)
        within = within && all_within(plan_.magnitudes, z_.as<T>() + k0 * points + n0 * cols_, present * cols_);
      z_finite_.push_back(within);
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
    w.row.reserve(padded_rows_ * padded_ * sizeof(T));
    w.one.reserve(padded_ * sizeof(T));
    w.partial.reserve(plan_.rows * plan_.outputs * cols_ * sizeof(T));
    w.scaled.reserve(together_ * tiles() * width_ * plan_.outputs * sizeof(T));
    std::fill_n(w.sums.as<double>(), rows_ * state, 0.0);
    w.finite.assign(static_cast<std::size_t>(padded_rows_ / plan_.rows), field_.fast_kernel != nullptr);
    for (std::int64_t r = 0; r < padded_rows_; ++r) pack_x(m0, r, count, w);
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
      w.pairs.reserve((planes() + 1) * padded_rows_ * width_ * sizeof(T));
      if (!engine_.empty()) compute_pairs(panel, n0, present, kind, w);
      if (item_.amplitude) read_amplitude(m0, count, n0, present, w.pairs.as<T>() + planes() * rows_ * width_);
      for (std::int64_t r = 0; r < count; r += together_)
        accumulate({m0, r, std::min(r + together_, count), n0, present}, w);
    }
    for (std::int64_t r = 0; r < count; ++r) write_row(m0 + r, w.sums.as<double>() + r * state);
  }

  /// Row r of the panel as [rows that go together][panel of features][row of these][cols_]; zeros behind the last row.
  void pack_x(std::int64_t m0, std::int64_t r, std::int64_t count, Workspace& w) const {
    T* const one = w.one.as<T>();
    if (r < count) pack_row(item_.item.x, m0 + r, one);
    else std::fill_n(one, padded_, T(0));
    const std::int64_t group = r / plan_.rows;
    auto& finite = w.finite[static_cast<std::size_t>(group)];
    finite = finite && all_within(plan_.magnitudes, one, padded_);
    T* const to = w.row.as<T>() + group * plan_.rows * padded_ + r % plan_.rows * cols_;
    for (std::int64_t k0 = 0; k0 < padded_; k0 += cols_) std::copy_n(one + k0, cols_, to + k0 * plan_.rows);
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

  /// The caller's amplitudes of the same columns, [row][width_]. They are of the computing type.
  void read_amplitude(std::int64_t m0, std::int64_t count, std::int64_t n0, std::int64_t present, T* plane) const {
    const T* const first = static_cast<const T*>(item_.amplitude) + m0 * item_.amplitude_row_stride +
                           n0 * item_.amplitude_col_stride;
    const std::int64_t row = item_.amplitude_row_stride, column = item_.amplitude_col_stride;
    if (row == 1 && column != 1) {  // neighbours of a column lie together
      for (std::int64_t n = 0; n < present; ++n)
        for (std::int64_t r = 0; r < count; ++r) plane[r * width_ + n] = first[r + n * column];
      return;
    }
    for (std::int64_t r = 0; r < count; ++r)
      for (std::int64_t n = 0; n < present; ++n) plane[r * width_ + n] = first[r * row + n * column];
  }

  /// Rows m0 + first … m0 + end - 1, whose coefficients are made together, and points n0 … n0 + present - 1.
  struct Block {
    std::int64_t m0, first, end, n0, present;
  };
  void accumulate(const Block& block, Workspace& w) {
    for (std::int64_t t = 0; t < tiles(); ++t)
      for (std::int64_t r = block.first; r < round_up(block.end, std::int64_t{plan_.rows}); ++r)
        scale_coefficients(block, t, r, w);
    for (std::int64_t n = 0; n < block.present; n += points_)
      for (std::int64_t k0 = 0; k0 < padded_; k0 += cols_)
        for (std::int64_t t = 0; t < tiles(); ++t)
          for (std::int64_t r = block.first; r < block.end; r += plan_.rows) accumulate_rows(block, n, k0, t, r, w);
  }

  /// The rows from r on that go together, points from n on, features from k0 on, a tile of outputs.
  void accumulate_rows(const Block& block, std::int64_t n, std::int64_t k0, std::int64_t t, std::int64_t r,
                       Workspace& w) {
    const Points &x = item_.item.x, &z = item_.item.z;
    const std::int64_t rows = std::min<std::int64_t>(plan_.rows, block.end - r);
    T row_values[2 * plan::kMostFieldRows] = {};
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t m = block.m0 + r + i;
      row_values[2 * i + plan::kUserSlot] = static_cast<T>(x.user[m]);
      row_values[2 * i + plan::kIndexSlot] = static_cast<T>(m + x.index_offset);
    }
    const std::int64_t of_z = block.n0 / width_;
    const bool fast = w.finite[static_cast<std::size_t>(r / plan_.rows)] && z_finite_[of_z];
    const jit::FieldKernel& kernel = fast ? *field_.fast_kernel : *field_.kernel;
    plan::FieldArgs args{};
    args.params = params_.data();
    args.row = row_values;
    args.col = z_values_.data() + of_z * 2 * width_ + n;
    args.pair = w.pairs.as<T>() + r * width_ + n;
    args.acc = w.partial.as<T>();
    args.z_stride = cols_ * static_cast<std::int64_t>(sizeof(T));
    args.n = std::min(points_, block.present - n);
    args.x = w.row.as<T>() + r * padded_ + k0 * plan_.rows;
    args.z = z_.as<T>() + k0 * z.count + (block.n0 + n) * cols_;
    args.w = weights_.data() + k0;
    args.coef = (plan_.scale_slots.empty() ? coefficients(block, t) : scaled(block, t, r, w)) + n * plan_.outputs;
    kernel(args);
    for (std::int64_t i = 0; i < rows; ++i) {
      double* sums = w.sums.as<double>() + ((r + i) * tiles() + t) * plan_.outputs * padded_ + k0;
      const T* partial = w.partial.as<T>() + i * plan_.outputs * cols_;
      for (int h = 0; h < plan_.outputs; ++h)
        for (std::int64_t c = 0; c < cols_; ++c)
          sums[h * padded_ + c] += static_cast<double>(partial[h * cols_ + c]);
    }
  }

  /// [n][outputs of the tile], of all rows; and of row r, times the pair values that are factors of φ.
  const T* coefficients(const Block& block, std::int64_t tile) const {
    return coef_.as<T>() + (tile * item_.item.z.count + block.n0) * plan_.outputs;
  }
  T* scaled(const Block& block, std::int64_t tile, std::int64_t r, Workspace& w) const {
    return w.scaled.as<T>() + (tile * together_ + r - block.first) * width_ * plan_.outputs;
  }

  /// Zeros for a row that is not there.
  void scale_coefficients(const Block& block, std::int64_t tile, std::int64_t r, Workspace& w) const {
    if (plan_.scale_slots.empty()) return;
    const T* coef = coefficients(block, tile);
    T* const to = scaled(block, tile, r, w);
    if (r >= block.end) {
      std::fill_n(to, block.present * plan_.outputs, T(0));
      return;
    }
    for (const int slot : plan_.scale_slots) {
      const T* scale = w.pairs.as<T>() + r * width_ + slot * static_cast<std::int64_t>(plan_.pair_stride);
      kScale[plan_.outputs - 1](to, coef, scale, block.present);
      coef = to;
    }
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
  std::int64_t rows_ = plan::kManyRows;     // of x in a task: a tile's, where there are tiles
  std::int64_t padded_rows_ = 0;            // up to those that go together
  std::int64_t points_ = 0, together_ = 0;  // n of one run of the kernel; rows whose coefficients are made together
  std::vector<ParamBlock<T>> block_;        // at most one
  std::vector<PairEngine<T>> engine_;       // empty: no pair value is computed
  std::vector<T> params_, weights_, z_values_;
  AlignedBuffer z_, coef_;
  std::vector<std::uint8_t> z_finite_;      // per block of width_ points
  PackedSide<T> z_pairs_;
  std::vector<Workspace> workspaces_;
};

}  // namespace

void gradient(const PairProgram* pairs, const FieldProgram& field, const FieldItem& item, const RunOptions& run) {
  if (field.plan->type == Dtype::float64) GradientRun<double>(pairs, field, item, run)();
  else GradientRun<float>(pairs, field, item, run)();
}

}  // namespace mercer::cpu
