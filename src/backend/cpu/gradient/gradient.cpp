// Fields of the pairs in one pass: two sweeps over the rows of a panel.
//
//   1. planes   for a panel of rows of x and a block of columns n: the tiles of pairwise, [slot][row][n], in cache; the
//               last one are weights, which the caller gives, or the factors of which they are products
//   2. fields   each contracts over n what it makes of the planes (contraction.h)
//
// Blocks whose planes a mask knows to be such that nothing is added are left out.
#include "backend/cpu/gradient/contraction.h"
#include "backend/cpu/pairs/tile_mask.h"

namespace mercer::cpu {
namespace {

struct Workspace {
  AlignedBuffer x_pairs, x_slots, planes, partial;
  TileScratch tiles;
  std::vector<ContractionScratch> fields;
  std::vector<double> sums;  // [sum][row]
  std::vector<double> known;
};

/// Weights of pairs, sum over e of u[m, e] v[n, e]: the contraction over e of u with points v', whose features are n.
template <class T>
class FactorPlane {
 public:
  FactorPlane(const GradientItem::Factors& factors, std::int64_t width)
      : factors_(factors), plan_(*factors.program->plan), cols_(plan_.source(false).cols()),
        capacity_(plan_.n_capacity), width_(width) {}

  void pack() {
    const Points &u = factors_.u, &v = factors_.v;
    const std::int64_t rows = round_up(u.count, std::int64_t{plan_.rows}) + plan_.rows, columns = u.features;
    u_ = aligned_array<T>(checked_product({rows, capacity_}));
    std::fill_n(u_.as<T>(), rows * capacity_, T(0));
    for (std::int64_t m = 0; m < u.count; ++m) pack_row(u, m, columns, u_.as<T>() + m * capacity_);
    none_ = aligned_array<T>(plan_.rows * cols_);
    std::fill_n(none_.as<T>(), plan_.rows * cols_, T(0));
    v_ = aligned_array<T>(checked_product({round_up(v.count, cols_), columns}));
    std::fill_n(v_.as<T>(), round_up(v.count, cols_) * columns, T(0));
    for (std::int64_t n = 0; n < v.count; ++n)
      for (std::int64_t e = 0; e < columns; ++e)
        v_.as<T>()[(n / cols_ * columns + e) * cols_ + n % cols_] =
            static_cast<T>(read_element(v.data, v.dtype, n * v.point_stride + e * v.feature_stride));
  }

  /// Whether all weights are kMildFactors.
  bool are_mild() const {
    const auto largest = [](const AlignedBuffer& values, std::int64_t count) {
      double most = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        const double size = std::abs(static_cast<double>(values.as<T>()[i]));
        if (!(size <= most)) most = size;  // a NaN stays
        if (most != most) break;
      }
      return most;
    };
    const Points &u = factors_.u, &v = factors_.v;
    const double most_u = largest(u_, (round_up(u.count, std::int64_t{plan_.rows}) + plan_.rows) * capacity_);
    const double most_v = largest(v_, round_up(v.count, cols_) * u.features);
    return most_u * most_v * static_cast<double>(u.features) <= kMildFactors.most;
  }

  void make(const PlaneBlock& block, T* plane, AlignedBuffer& partial) const {
    partial.reserve(plan_.rows * cols_ * sizeof(T));
    const std::int64_t last = block.n0 + block.present;
    for (std::int64_t panel = block.n0 / cols_; panel * cols_ < last; ++panel)
      for (std::int64_t r = 0; r < block.count; r += plan_.rows) {
        plan::FieldArgs args{};
        args.acc = partial.as<T>();
        args.x = args.w = none_.as<T>();  // loaded, whether φ reads them or not
        args.z = v_.as<T>() + panel * factors_.u.features * cols_;
        args.z_stride = cols_ * static_cast<std::int64_t>(sizeof(T));
        args.n = factors_.u.features;
        args.coef = u_.as<T>() + (block.m0 + r) * capacity_;
        (*factors_.program->kernel)(args);
        const std::int64_t rows = std::min<std::int64_t>(plan_.rows, block.count - r);
        const std::int64_t from = std::max(panel * cols_, block.n0), end = std::min((panel + 1) * cols_, last);
        for (std::int64_t i = 0; i < rows; ++i)
          std::copy_n(partial.as<T>() + i * cols_ + from - panel * cols_, end - from,
                      plane + (r + i) * width_ + from - block.n0);
      }
  }

 private:
  const GradientItem::Factors& factors_;
  const plan::FieldPlan& plan_;
  std::int64_t cols_, capacity_, width_;
  AlignedBuffer u_, v_, none_;
};

template <class T>
class GradientRun {
 public:
  GradientRun(const PairProgram* pairs, const GradientItem& item, const RunOptions& run)
      : item_(item), run_(run), width_(item.fields.front().program->plan->n_capacity) {
    if (pairs && !pairs->plan().problem.outputs.empty()) {
      block_.emplace_back(pairs->plan(), item.pair_params, item.item.x.features);
      engine_.emplace_back(*pairs, item.item, block_[0]);
      mask_.emplace_back(pairs->plan(), item.item, block_[0].wide, run.least_gain);
      rows_ = engine_[0].tile().rows;
    } else {
      rows_ = std::clamp<std::int64_t>(item.item.x.count, 1, rows_);
    }
    if (item.factors.program != nullptr) factors_.emplace_back(item.factors, width_);
    padded_rows_ = rows_;
    for (const FieldItem& field : item.fields) {
      fields_.emplace_back(field, rows_, width_);
      padded_rows_ = std::max(padded_rows_, fields_.back().padded_rows());
    }
    for (const SumItem& sum : item.sums) sums_.emplace_back(sum, width_, rows_ * width_);
  }

  void operator()() {
    for (Contraction<T>& field : fields_) field.pack(run_);
    for (FactorPlane<T>& factors : factors_) factors.pack();
    if (!engine_.empty()) z_pairs_.pack(engine_[0].z_packer(), 0, engine_[0].z_packer().panels(), *run_.pool);
    look_at_factors();
    workspaces_.resize(run_.workers);
    for (Workspace& w : workspaces_) w.fields.resize(fields_.size());
    const std::int64_t count = item_.item.x.count;
    run_(ceil_div(count, rows_), [&](std::int64_t task, int worker) { run_panel(task, workspaces_[worker]); });
  }

 private:
  /// Forgets the mask where factors are such that zeros of planes may not be zeros of the results.
  void look_at_factors() {
    if (mask_.empty() || !mask_[0]) return;
    for (Contraction<T>& field : fields_) field.look_at_factors();
    for (PlaneSum<T>& sum : sums_) sum.look_at_factors();
    if (!factors_.empty() && !factors_[0].are_mild()) mask_.clear();
  }

  /// Whether a block adds nothing to the results.
  bool adds_nothing(std::int64_t panel, const PlaneBlock& block, Workspace& w, T* weights) const {
    if (mask_.empty() || !mask_[0]) return false;
    const std::int64_t cols = engine_[0].tile().cols(), end = ceil_div(block.n0 + block.present, cols);
    w.known.resize(mask_[0].values());
    if (mask_[0].of(panel, panel + 1, block.n0 / cols, end, w.known.data()) != plan::MaskAnswer::known) return false;
    const auto nothing = [&](const auto& sums) { return sums.adds_nothing(w.known); };
    if (!std::ranges::all_of(fields_, nothing) || !std::ranges::all_of(sums_, nothing)) return false;
    if (item_.amplitude == nullptr) return true;
    read_amplitude(block, weights);
    for (std::int64_t r = 0; r < block.count; ++r)
      if (!all_within(kMildFactors, weights + r * width_, block.present)) return false;
    return true;
  }

  void run_panel(std::int64_t panel, Workspace& w) {
    const std::int64_t m0 = panel * rows_, count = std::min<std::int64_t>(rows_, item_.item.x.count - m0);
    for (std::size_t f = 0; f < fields_.size(); ++f) fields_[f].begin(m0, count, w.fields[f]);
    w.sums.assign(sums_.size() * static_cast<std::size_t>(rows_), 0.0);
    PanelKind kind = PanelKind::finite;
    if (!engine_.empty()) {
      const Packer<T>& x = engine_[0].x_packer();
      w.x_pairs.reserve(x.panel_size() * sizeof(T));
      w.x_slots.reserve(x.slots_size() * sizeof(T));
      w.tiles.acc.reserve(engine_[0].accumulator_size() * sizeof(T));
      kind = x.pack(panel, w.x_pairs.as<T>(), w.x_slots.as<T>());
    }
    w.planes.reserve((planes() + 1) * padded_rows_ * width_ * sizeof(T));
    T* const last = w.planes.as<T>() + planes() * rows_ * width_;
    for (std::int64_t n0 = 0; n0 < item_.item.z.count; n0 += width_) {
      const PlaneBlock block{m0, count, n0, std::min<std::int64_t>(width_, item_.item.z.count - n0)};
      if (adds_nothing(panel, block, w, last)) continue;
      if (!engine_.empty()) compute_pairs(panel, block, kind, w);
      if (item_.amplitude) read_amplitude(block, last);
      for (const FactorPlane<T>& factors : factors_) factors.make(block, last, w.partial);
      for (std::size_t f = 0; f < fields_.size(); ++f) fields_[f].add(block, w.planes.as<T>(), w.fields[f]);
      for (std::size_t s = 0; s < sums_.size(); ++s)
        sums_[s].add(block, w.planes.as<T>(), last, w.sums.data() + s * static_cast<std::size_t>(rows_));
    }
    for (std::size_t f = 0; f < fields_.size(); ++f) fields_[f].end(m0, count, w.fields[f]);
    for (std::size_t s = 0; s < sums_.size(); ++s)
      sums_[s].end(m0, count, w.sums.data() + s * static_cast<std::size_t>(rows_));
  }

  /// Pair values that the engine computes.
  std::int64_t planes() const {
    return engine_.empty() ? 0 : static_cast<std::int64_t>(engine_[0].plan().general.epilogue.outputs.size());
  }

  /// w.planes[slot][row][width_] for columns n0 … n0 + present - 1.
  void compute_pairs(std::int64_t panel, const PlaneBlock& block, PanelKind kind, Workspace& w) {
    const PairEngine<T>& engine = engine_[0];
    const std::int64_t tile_cols = engine.tile().cols();
    for (std::int64_t n = block.n0; n < block.n0 + block.present; n += tile_cols) {
      const PanelView<T> rows{w.x_pairs.as<T>(), w.x_slots.as<T>(), panel, kind};
      engine.compute(rows, z_pairs_.view(n / tile_cols), w.tiles, w.planes.as<T>() + (n - block.n0), width_);
    }
  }

  /// The caller's amplitudes of the same columns, [row][width_].
  void read_amplitude(const PlaneBlock& block, T* plane) const {
    const std::int64_t row = item_.amplitude_row_stride, column = item_.amplitude_col_stride;
    if (item_.amplitude_dtype != dtype_of<T>()) {
      for (std::int64_t r = 0; r < block.count; ++r)
        for (std::int64_t n = 0; n < block.present; ++n)
          plane[r * width_ + n] = static_cast<T>(read_element(item_.amplitude, item_.amplitude_dtype,
                                                              (block.m0 + r) * row + (block.n0 + n) * column));
      return;
    }
    const T* const first = static_cast<const T*>(item_.amplitude) + block.m0 * row + block.n0 * column;
    if (row == 1 && column != 1) {  // neighbours of a column lie together
      for (std::int64_t n = 0; n < block.present; ++n)
        for (std::int64_t r = 0; r < block.count; ++r) plane[r * width_ + n] = first[r + n * column];
      return;
    }
    for (std::int64_t r = 0; r < block.count; ++r)
      for (std::int64_t n = 0; n < block.present; ++n) plane[r * width_ + n] = first[r * row + n * column];
  }

  const GradientItem& item_;
  RunOptions run_;
  std::int64_t width_;
  std::int64_t rows_ = plan::kManyRows;  // of x in a task: a tile's, where there are tiles
  std::int64_t padded_rows_ = 0;         // of the planes, up to those that go together
  std::vector<ParamBlock<T>> block_;     // at most one
  std::vector<PairEngine<T>> engine_;    // empty: no pair value is computed
  std::vector<TileMask> mask_;           // of the engine, unless zeros may be none of the results
  std::vector<FactorPlane<T>> factors_;  // at most one
  std::vector<Contraction<T>> fields_;
  std::vector<PlaneSum<T>> sums_;
  PackedSide<T> z_pairs_;
  std::vector<Workspace> workspaces_;
};

}  // namespace

void gradient(const PairProgram* pairs, const GradientItem& item, const RunOptions& run) {
  if (item.fields.front().program->plan->type == Dtype::float64) GradientRun<double>(pairs, item, run)();
  else GradientRun<float>(pairs, item, run)();
}

}  // namespace mercer::cpu
