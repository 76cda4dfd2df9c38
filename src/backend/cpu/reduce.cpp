// out[m] = fold over n of P[n, m]. State per m: a value and an index, or (maximum, sum) for logsumexp; ranges of n are
// merged in their order, so the first of equal values wins whatever the number of threads.
#include <cmath>
#include <limits>

#include "backend/cpu/panel_sweep.h"

namespace mercer::cpu {
namespace {

/// Whether `candidate` replaces `best`: larger (smaller), or NaN where there was none; equal values never do.
template <bool kLargest, class T>
inline bool replaces(T candidate, T best) {
  const bool better = kLargest ? candidate > best : candidate < best;
  return better || (candidate != candidate && best == best);
}

struct FoldState {
  std::vector<double> value, sum;
  std::vector<std::int64_t> index;
};

template <bool kLargest, class T>
void fold_extreme(const T* values, std::int64_t rows, std::int64_t cols, std::int64_t n0, T* best, std::int64_t* index) {
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
        sweep_(program, item, {member.params}) {}

  void operator()() {
    const std::int64_t states = sweep_.ranges() * sweep_.panels() * sweep_.cols();
    best_.assign(states, fold_ == Fold::logsumexp ? -std::numeric_limits<T>::infinity() : T(0));
    index_.assign(states, -1);
    sum_.assign(states, 0.0);
    scratch_.resize(run_.workers);
    sweep_(run_, [&](std::int64_t range, std::int64_t q, std::size_t, std::int64_t n0, std::int64_t rows, T* values,
                     int worker) { fold_block((range * sweep_.panels() + q) * sweep_.cols(), n0, rows, values, worker); });
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

  /// Rescales the sum to the new maximum, then adds exp(P - maximum), by the compiled exponential.
  void fold_exponentials(std::int64_t at, std::int64_t rows, T* values, int worker) {
    const std::int64_t cols = sweep_.cols();
    AlignedBuffer& scratch = scratch_[worker];
    scratch.reserve((plan::kFirstStageSlot + PanelSweep<T>::kBlock) * cols * sizeof(T));
    T* shift = scratch.template as<T>();
    T* result = shift + plan::kFirstStageSlot * cols;
    for (std::int64_t c = 0; c < cols; ++c) {
      T top = best_[at + c];
      for (std::int64_t r = 0; r < rows; ++r) top = replaces<true>(values[r * cols + c], top) ? values[r * cols + c] : top;
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

/// (value, index) in the order of the result: ascending, NaN last, ties by index.
template <class T>
struct Neighbour {
  T value;
  std::int64_t index;
  bool operator<(const Neighbour& other) const {
    const bool nan = value != value, other_nan = other.value != other.value;
    if (nan != other_nan) return other_nan;
    if (!nan && value != other.value) return value < other.value;
    return index < other.index;
  }
};

template <class T>
void run_nearest(const PairProgram& program, const PairItem& item, const std::vector<double>& params, std::int64_t k,
                 const OutputMatrix& values_out, const OutputMatrix& indices_out, const RunOptions& run) {
  PanelSweep<T> sweep(program, item, {params});
  const std::int64_t cols = sweep.cols(), panels = sweep.panels();
  std::vector<std::vector<Neighbour<T>>> heaps(sweep.ranges() * panels * cols);
  // The largest value still wanted per column; a heap that is not full wants everything.
  std::vector<T> bars(heaps.size(), std::numeric_limits<T>::quiet_NaN());
  // Columns that only fill the last panel want nothing; a NaN there costs one look.
  for (std::int64_t range = 0; range < sweep.ranges(); ++range)
    for (std::int64_t c = item.z.count; c < panels * cols; ++c)
      bars[range * panels * cols + c] = -std::numeric_limits<T>::infinity();
  sweep(run, [&](std::int64_t range, std::int64_t q, std::size_t, std::int64_t n0, std::int64_t rows, const T* values,
                 int) {
    const std::int64_t at = (range * panels + q) * cols;
    const T* bar = &bars[at];
    for (std::int64_t r = 0; r < rows; ++r) {
      const T* row = values + r * cols;
      unsigned wanted = 0;
      for (std::int64_t c = 0; c < cols; ++c) wanted |= !(row[c] >= bar[c]);
      if (!wanted) continue;
      for (std::int64_t c = 0; c < sweep.points_in(q); ++c) {
        if (row[c] >= bar[c]) continue;
        auto& heap = heaps[at + c];
        const Neighbour<T> candidate{row[c], n0 + r};
        if (static_cast<std::int64_t>(heap.size()) == k) {
          if (!(candidate < heap.front())) continue;
          std::pop_heap(heap.begin(), heap.end());
          heap.back() = candidate;
        } else {
          heap.push_back(candidate);
        }
        std::push_heap(heap.begin(), heap.end());
        if (static_cast<std::int64_t>(heap.size()) == k) bars[at + c] = heap.front().value;
      }
    }
  });
  std::vector<Neighbour<T>> all;
  for (std::int64_t m = 0; m < item.z.count; ++m) {
    all.clear();
    for (std::int64_t range = 0; range < sweep.ranges(); ++range) {
      const auto& heap = heaps[(range * panels + m / cols) * cols + m % cols];
      all.insert(all.end(), heap.begin(), heap.end());
    }
    std::partial_sort(all.begin(), all.begin() + k, all.end());
    for (std::int64_t i = 0; i < k; ++i) {
      write_block<T>(&all[i].value, 1, 1, 1, values_out, m, i);
      static_cast<std::int64_t*>(indices_out.data)[m * indices_out.row_stride + i * indices_out.col_stride] = all[i].index;
    }
  }
}

}  // namespace

void reduce(const PairProgram& program, const PairItem& item, const PairMember& member, Fold fold,
            const jit::EpilogueKernel* exponential, const RunOptions& run) {
  if (program.plan().problem.type == Dtype::float64)
    ReduceRun<double>(program, item, member, fold, exponential, run)();
  else ReduceRun<float>(program, item, member, fold, exponential, run)();
}

void nearest(const PairProgram& program, const PairItem& item, const std::vector<double>& params, std::int64_t k,
             const OutputMatrix& values, const OutputMatrix& indices, const RunOptions& run) {
  if (program.plan().problem.type == Dtype::float64) run_nearest<double>(program, item, params, k, values, indices, run);
  else run_nearest<float>(program, item, params, k, values, indices, run);
}

}  // namespace mercer::cpu
