// out[m] = fold over n of P[n, m]. State per m: a value and an index, or (maximum, sum) for logsumexp; ranges of n are
// merged in their order, so the first of equal values wins whatever the number of threads.
#include <cmath>
#include <limits>

#include "backend/cpu/pairs/panel_sweep.h"
#include "backend/cpu/pairs/smallest.h"

namespace mercer::cpu {
namespace {

/// Whether `candidate` replaces `best`: larger (smaller), or NaN where there was none; equal values never do.
template <bool kLargest, class T>
inline bool replaces(T candidate, T best) {
  const bool better = kLargest ? candidate > best : candidate < best;
  return better || (candidate != candidate && best == best);
}

template <bool kLargest, class T>
void fold_extreme(const T* values, std::int64_t rows, std::int64_t cols, std::int64_t n0, T* best,
                  std::int64_t* index) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) {
      const T candidate = values[r * cols + c];
      const bool better = replaces<kLargest>(candidate, best[c]) || index[c] < 0;
      best[c] = better ? candidate : best[c];
      index[c] = better ? n0 + r : index[c];
    }
}

/// One state per (range, panel), laid out [range][panel][cols].
template <class T>
class ReduceRun {
 public:
  ReduceRun(const PairProgram& program, const PairItem& item, const PairMember& member, Fold fold,
            const jit::EpilogueKernel* exponential, const RunOptions& run)
      : program_(program), item_(item), member_(member), fold_(fold), exponential_(exponential), run_(run),
        sweep_(program, item, {ParamBlock<T>(program.plan(), member.params, item.x.features)}, run) {}

  void operator()() {
    const std::int64_t states = sweep_.ranges() * sweep_.panels() * sweep_.cols();
    best_.assign(states, fold_ == Fold::logsumexp ? -std::numeric_limits<T>::infinity() : T(0));
    index_.assign(states, -1);
    sum_.assign(states, 0.0);
    scratch_.resize(run_.workers);
    sweep_(run_, [&](std::int64_t range, std::int64_t q, std::size_t, std::int64_t n0, std::int64_t rows, T* values,
                     int worker) {
      fold_block((range * sweep_.panels() + q) * sweep_.cols(), n0, rows, values, worker);
    }, [&](std::int64_t range, std::int64_t q, std::int64_t n0, std::int64_t rows, T value, int worker) {
      take((range * sweep_.panels() + q) * sweep_.cols(), n0, rows, value, worker);
      return true;
    });
    for (std::int64_t m = 0; m < item_.z.count; ++m) finish(m);
  }

 private:
  void fold_block(std::int64_t at, std::int64_t n0, std::int64_t rows, T* values, int worker) {
    const std::int64_t cols = sweep_.cols();
    switch (fold_) {
      case Fold::max:
      case Fold::argmax: return fold_extreme<true>(values, rows, cols, n0, &best_[at], &index_[at]);
      case Fold::min:
      case Fold::argmin: return fold_extreme<false>(values, rows, cols, n0, &best_[at], &index_[at]);
      case Fold::sum:
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t c = 0; c < cols; ++c) sum_[at + c] += static_cast<double>(values[r * cols + c]);
        return;
      case Fold::logsumexp: return fold_exponentials(at, rows, values, worker);
    }
  }

  /// Points n0 … n0 + rows - 1 of one value: the first of them, then what the others add to a sum.
  void take(std::int64_t at, std::int64_t n0, std::int64_t rows, T value, int worker) {
    const std::int64_t cols = sweep_.cols();
    std::vector<T> first(cols, value);
    fold_block(at, n0, 1, first.data(), worker);
    const auto others = static_cast<double>(rows - 1), term = static_cast<double>(value);
    if (others == 0) return;
    for (std::int64_t c = 0; c < cols; ++c) {
      if (fold_ == Fold::sum) sum_[at + c] += others * term;
      if (fold_ == Fold::logsumexp && !std::isinf(best_[at + c]))
        sum_[at + c] += others * std::exp(term - static_cast<double>(best_[at + c]));
    }
  }

  /// Rescales the sum to the new maximum, then adds exp(P - maximum), by the compiled exponential.
  void fold_exponentials(std::int64_t at, std::int64_t rows, T* values, int worker) {
    const std::int64_t cols = sweep_.cols();
    AlignedBuffer& scratch = scratch_[worker];
    scratch.reserve((plan::kFirstStageSlot + PanelSweep<T>::kBlock) * cols * sizeof(T));
    T* shift = scratch.template as<T>();
    T* result = shift + plan::kFirstStageSlot * cols;
    for (std::int64_t c = 0; c < cols; ++c) {
      T top = best_[at + c];
      for (std::int64_t r = 0; r < rows; ++r)
        top = replaces<true>(values[r * cols + c], top) ? values[r * cols + c] : top;
      if (top != best_[at + c]) {
        sum_[at + c] *= std::exp(static_cast<double>(best_[at + c]) - static_cast<double>(top));
        best_[at + c] = top;
      }
      shift[c] = std::isinf(top) ? T(0) : top;
      // An infinite maximum: count its copies instead (Inf - Inf would be NaN); -Inf alone keeps the sum at 0.
      if (std::isinf(top)) sum_[at + c] = top > 0 ? 1.0 : 0.0;
    }
    const std::int64_t height = program_.plan().tile.rows;
    for (std::int64_t r = 0; r < rows; r += height) {
      const plan::EpilogueArgs args{values + r * cols, nullptr, shift, nullptr, result + r * cols,
                                    cols * static_cast<std::int64_t>(sizeof(T)), std::min(height, rows - r)};
      (*exponential_)(args);
    }
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c)
        if (!std::isinf(best_[at + c])) sum_[at + c] += static_cast<double>(result[r * cols + c]);
  }

  void finish(std::int64_t m) {
    const std::int64_t cols = sweep_.cols(), panels = sweep_.panels();
    auto at = [&](std::int64_t range) { return (range * panels + m / cols) * cols + m % cols; };
    const OutputMatrix& out = member_.out;
    std::int64_t best = at(0);
    double sum = sum_[best];
    T top = best_[best];
    for (std::int64_t range = 1; range < sweep_.ranges(); ++range) {
      const std::int64_t other = at(range);
      if (fold_ == Fold::sum) sum += sum_[other];
      else if (fold_ == Fold::logsumexp) merge_exponentials(top, sum, best_[other], sum_[other]);
      else if (fold_ == Fold::max || fold_ == Fold::argmax ? replaces<true>(best_[other], best_[best])
                                                           : replaces<false>(best_[other], best_[best]))
        best = other;
    }
    if (fold_ == Fold::argmax || fold_ == Fold::argmin) {
      static_cast<std::int64_t*>(out.data)[m * out.row_stride] = index_[best];
      return;
    }
    T value = best_[best];
    if (fold_ == Fold::sum) value = static_cast<T>(sum);
    if (fold_ == Fold::logsumexp) value = static_cast<T>(static_cast<double>(top) + std::log(sum));
    write_block<T>(&value, 1, 1, 1, out, m, 0);
  }

  static void merge_exponentials(T& top, double& sum, T other_top, double other_sum) {
    const T larger = replaces<true>(other_top, top) ? other_top : top;
    auto scaled = [&](T from, double value) {
      return from == larger ? value : value * std::exp(static_cast<double>(from) - static_cast<double>(larger));
    };
    sum = scaled(top, sum) + scaled(other_top, other_sum);
    top = larger;
  }

  const PairProgram& program_;
  const PairItem& item_;
  const PairMember& member_;
  Fold fold_;
  const jit::EpilogueKernel* exponential_;
  RunOptions run_;
  PanelSweep<T> sweep_;
  std::vector<T> best_;
  std::vector<std::int64_t> index_;
  std::vector<double> sum_;
  std::vector<AlignedBuffer> scratch_;
};

/// The best so far per (range, column), laid out [range][panel][cols] as above: a list, and from k on a heap.
template <class T>
class NearestRun {
 public:
  NearestRun(const PairProgram& program, const PairItem& item, const std::vector<double>& params, std::int64_t k,
             const OutputMatrix& values, const OutputMatrix& indices, const RunOptions& run)
      : item_(item), k_(k), values_(values), indices_(indices),
        sweep_(program, item, {ParamBlock<T>(program.plan(), params, item.x.features)}, run),
        sizes_(sweep_.ranges() * columns(), 0), bars_(sizes_.size(), std::numeric_limits<T>::quiet_NaN()),
        kept_(aligned_array<Neighbour<T>>(checked_product({std::ssize(sizes_), k}))) {
    // Columns that only fill the last panel want nothing; a NaN there costs one look.
    for (std::int64_t range = 0; range < sweep_.ranges(); ++range)
      for (std::int64_t c = item.z.count; c < columns(); ++c)
        bars_[range * columns() + c] = -std::numeric_limits<T>::infinity();
  }

  void operator()(const RunOptions& run) {
    sweep_(run, [&](std::int64_t range, std::int64_t q, std::size_t, std::int64_t n0, std::int64_t rows,
                    const T* values, int) {
      for (std::int64_t r = 0; r < rows; ++r)
        offer_row(range * columns() + q * sweep_.cols(), sweep_.points_in(q), n0 + r, values + r * sweep_.cols());
    }, [&](std::int64_t range, std::int64_t q, std::int64_t n0, std::int64_t rows, T value, int) {
      const std::vector<T> row(sweep_.cols(), value);
      const std::int64_t at = range * columns() + q * sweep_.cols();
      for (std::int64_t r = 0; r < rows && is_wanted(at, sweep_.points_in(q), value); ++r)
        offer_row(at, sweep_.points_in(q), n0 + r, row.data());
      return true;
    });
    for (std::int64_t m = 0; m < item_.z.count; ++m) finish(m);
  }

 private:
  std::int64_t columns() const { return sweep_.panels() * sweep_.cols(); }

  /// Point n for all columns of a panel; most rows hold nothing that is wanted.
  void offer_row(std::int64_t at, int present, std::int64_t n, const T* row) {
    const std::int64_t cols = sweep_.cols();
    const T* bar = &bars_[at];
    unsigned wanted = 0;
    for (std::int64_t c = 0; c < cols; ++c) wanted |= !(row[c] >= bar[c]);
    if (!wanted) return;
    for (std::int64_t c = 0; c < present; ++c)
      if (!(row[c] >= bar[c])) offer(at + c, {row[c], n});
  }

  /// Whether a column of a panel wants a point of this value.
  bool is_wanted(std::int64_t at, int present, T value) const {
    return std::any_of(&bars_[at], &bars_[at] + present, [&](T bar) { return !(value >= bar); });
  }

  void offer(std::int64_t at, const Neighbour<T>& candidate) {
    Neighbour<T>*const first = kept(at), *const end = first + k_;
    if (sizes_[at] < k_) {
      first[sizes_[at]++] = candidate;
      if (sizes_[at] < k_) return;
      std::make_heap(first, end);
    } else {
      if (!(candidate < *first)) return;
      std::pop_heap(first, end);
      end[-1] = candidate;
      std::push_heap(first, end);
    }
    bars_[at] = first->value;
  }

  void finish(std::int64_t m) {
    const Neighbour<T>* nearest = kept(m);
    if (sweep_.ranges() == 1) {
      std::sort(kept(m), kept(m) + k_);
    } else {
      all_.clear();
      for (std::int64_t range = 0; range < sweep_.ranges(); ++range) {
        const std::int64_t at = range * columns() + m;
        all_.insert(all_.end(), kept(at), kept(at) + sizes_[at]);
      }
      std::partial_sort(all_.begin(), all_.begin() + k_, all_.end());
      nearest = all_.data();
    }
    for (std::int64_t i = 0; i < k_; ++i) {
      store_element<T>(values_, m * values_.row_stride + i * values_.col_stride, nearest[i].value);
      static_cast<std::int64_t*>(indices_.data)[m * indices_.row_stride + i * indices_.col_stride] = nearest[i].index;
    }
  }
  Neighbour<T>* kept(std::int64_t at) const { return kept_.template as<Neighbour<T>>() + at * k_; }

  const PairItem& item_;
  std::int64_t k_;
  const OutputMatrix& values_;
  const OutputMatrix& indices_;
  PanelSweep<T> sweep_;
  std::vector<std::int64_t> sizes_;
  std::vector<T> bars_;  // the largest value still wanted; NaN, which wants everything, while a list is not full
  AlignedBuffer kept_;   // [range][panel][cols][k]
  std::vector<Neighbour<T>> all_;  // of one point
};

}  // namespace

void reduce(const PairProgram& program, const PairItem& item, const PairMember& member, Fold fold,
            const jit::EpilogueKernel* exponential, const RunOptions& run) {
  if (program.plan().problem.type == Dtype::float64)
    ReduceRun<double>(program, item, member, fold, exponential, run)();
  else ReduceRun<float>(program, item, member, fold, exponential, run)();
}

void nearest(const PairProgram& program, const PairItem& item, const std::vector<double>& params, std::int64_t k,
             const OutputMatrix& values, const OutputMatrix& indices, const RunOptions& run) {
  if (program.plan().problem.type == Dtype::float64)
    NearestRun<double>(program, item, params, k, values, indices, run)(run);
  else NearestRun<float>(program, item, params, k, values, indices, run)(run);
}

}  // namespace mercer::cpu
