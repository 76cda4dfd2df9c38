// The CPU drivers. Each takes one group of batch items that share an accumulation; `members` differ in the parameters
// of the epilogue and in their output. Arguments are checked by ops/ before.
#pragma once

#include <atomic>

#include "backend/cpu/pack/output.h"
#include "backend/cpu/pairs/pair_engine.h"
#include "core/system/parallel.h"

namespace mercer::cpu {

struct PairMember {
  std::vector<double> params;
  OutputMatrix out;
};

/// What became of the tiles of all calls that take maxima where they can.
struct MaximaTiles {
  std::atomic<std::int64_t> maxima{0}, doubtful{0}, values{0};
  void add(const TileCounts& counts) {
    maxima += counts.maxima;
    doubtful += counts.doubtful;
    values += counts.values;
  }
};

/// How a driver's loops are run. `workers` is read once per call: the pool's number of threads may change meanwhile.
struct RunOptions {
  RunOptions(Pool* p, const Pool::Progress* asked, double gain = plan::kLeastGain, MaximaTiles* tiles = nullptr)
      : pool(p), progress(asked), workers(p->threads()), least_gain(gain), maxima_tiles(tiles) {}
  void operator()(std::int64_t tasks, const Pool::Body& body) const { pool->run(tasks, body, progress, workers); }

  Pool* pool;
  const Pool::Progress* progress;
  int workers;
  double least_gain;  // of maxima (plan::PairPlan::pays_maxima)
  MaximaTiles* maxima_tiles;

  void count(const TileCounts& counts) const {
    if (maxima_tiles) maxima_tiles->add(counts);
  }
};

/// out[m, n] for x [M, K] and z [N, K]. `symmetric`: compute n >= m only and mirror.
void pairwise(const PairProgram& program, const PairItem& item, const std::vector<PairMember>& members, bool symmetric,
              const RunOptions& run);

/// Second stages over the broadcast side. The program is that of the formula with its sides swapped: item.x holds the N
/// points that are summed over, item.z the M points that stay.
struct ProductMember {
  std::vector<double> params;
  const void* v = nullptr;        // [N, E]
  Dtype v_dtype = Dtype::float32;
  std::int64_t v_row_stride = 0, v_col_stride = 0;
  OutputMatrix out;               // [M, E]
};
/// `kernel` is a dot product on a tile of `height` rows and the program's columns.
void product(const PairProgram& program, const PairItem& item, const std::vector<ProductMember>& members,
             std::int64_t columns, const jit::UpdateKernel& kernel, int height, const RunOptions& run);

enum class Fold { sum, max, min, argmax, argmin, logsumexp };
/// member.out [M, 1]; int64 for argmax and argmin.
/// `exponential` computes exp(acc - col[0]) on the program's tile (logsumexp only).
void reduce(const PairProgram& program, const PairItem& item, const PairMember& member, Fold fold,
            const jit::EpilogueKernel* exponential, const RunOptions& run);

/// The k smallest values per point that stays, and where they are: values, indices [M, k].
void nearest(const PairProgram& program, const PairItem& item, const std::vector<double>& params, std::int64_t k,
             const OutputMatrix& values, const OutputMatrix& indices, const RunOptions& run);

struct FieldProgram {
  std::shared_ptr<const plan::FieldPlan> plan;
  std::unique_ptr<jit::FieldKernel> kernel, fast_kernel;  // fast_kernel: null when one program serves all data
  std::unique_ptr<jit::FieldKernel> finish;               // of a fold whose result is not its first state
  explicit FieldProgram(const std::shared_ptr<const plan::FieldPlan>& p)
      : plan(p), kernel(jit::compile(p->source(false))) {
    if (p->has_fast) fast_kernel = jit::compile(p->source(true));
    if (!p->finish.outputs.empty()) finish = jit::compile(p->finish_source());
  }
  /// That of a plan with units, compiled when a call first needs it.
  const jit::FieldKernel& scaled_kernel() const {
    return scaled_.get([this] { return jit::compile(plan->scaled_source()); });
  }

 private:
  MadeOnce<jit::FieldKernel> scaled_;
};
/// A field: out[o, m, k] = row_scale[m] * sum over n of coef[o, n] φ(x[m, k], z[n, k], planes of the pairs); or a fold.
struct FieldItem {
  std::shared_ptr<const FieldProgram> program;
  Points x, z;                    // x [M, K], without data where φ reads none; z [N, K]
  const double* weights = nullptr;  // [K], or null where φ reads none
  std::vector<double> params;
  const void* coef = nullptr;     // [O, N], or null where a fold reads none
  Dtype coef_dtype = Dtype::float32;
  std::int64_t outputs = 1, coef_output_stride = 0, coef_point_stride = 0;
  Points row_scale;               // [M, 1]; without data: ones
  void* out = nullptr;            // [O, M, K]
  std::int64_t out_output_stride = 0, out_row_stride = 0, out_feature_stride = 0;
};
/// A sum: out[m] = row_scale[m] * sum over n of a plane times coef[n], or times the weights of the pairs.
struct SumItem {
  int plane = 0;
  std::int64_t points = 0;        // N
  Points coef;                    // [N, 1]; without data: the weights
  Points row_scale;
  void* out = nullptr;            // [M]
  std::int64_t out_stride = 0;
};
/// Fields and sums of the same planes: the values of `pairs`, where there are some, and last weights of the pairs,
/// where there are some: the `amplitude` [M, N], or sum over e of u[m, e] v[n, e].
struct GradientItem {
  PairItem item;
  std::vector<double> pair_params;
  const void* amplitude = nullptr;
  Dtype amplitude_dtype = Dtype::float32;
  std::int64_t amplitude_row_stride = 0, amplitude_col_stride = 0;
  struct Factors {
    std::shared_ptr<const FieldProgram> program;  // of φ = z with coefficients of each row; n_capacity of these
    Points u, v;                                  // [M, E], [N, E]
  };
  Factors factors;
  std::vector<FieldItem> fields;  // at least one
  std::vector<SumItem> sums;
};
void gradient(const PairProgram* pairs, const GradientItem& item, const RunOptions& run);

}  // namespace mercer::cpu
