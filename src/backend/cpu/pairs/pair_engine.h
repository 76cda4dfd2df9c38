// Tiles of pairs: accumulate over the features, then the epilogue, in one kernel where both fit the registers. Every
// CPU operation is a driver around this class.
//
// With maxima a tile may turn out doubtful: its sums are then made from the values themselves, which are packed again
// into the worker's own memory. So is a panel of maxima that meets one of values, and a panel of scaled values that
// meets one of others.
#pragma once

#include <memory>
#include <vector>

#include "backend/cpu/pack/pack.h"
#include "core/made_once.h"
#include "core/system/mutex.h"
#include "jit/compile.h"

namespace mercer::cpu {

/// Everything compiled for one plan.
struct PairProgram {
  explicit PairProgram(const std::shared_ptr<const plan::PairPlan>& plan)
      : kernels(plan), packs(*plan), forms(plan::cpu::forms_of(*plan)) {}
  const plan::PairPlan& plan() const { return kernels.plan(); }
  /// What computes pairs again, in float64, made when a call first needs it: of a float32 plan the same formulas, of a
  /// float64 plan those whose sums are scaled.
  const PairProgram& wide() const;
  /// Where an output shows its sum (plan::PairGuard): a value that outputs of sums below `bound` do not reach.
  template <class T>
  T output_below(T bound) const;
  jit::PairKernels kernels;
  PackPrograms packs;
  plan::cpu::PairForms forms;

 private:
  mutable Once wide_once_;
  mutable std::unique_ptr<const PairProgram> wide_;
  mutable Once outputs_once_;
  mutable std::vector<double> outputs_;  // of sums that are powers of two, by their exponents
};

/// Parameters and uniforms of one batch item in the computing type.
template <class T>
struct ParamBlock {
  ParamBlock(const plan::PairPlan& plan, const std::vector<double>& params, std::int64_t features);
  std::vector<double> wide;       // the general variant's, for stage 0 and streams
  std::vector<T> general, fast;
  // Every divisor that the program reads has a normal reciprocal. One answer each: what only the epilogue reads must
  // not change an accumulation that other batch items share.
  bool fast_update = false, fast_epilogue = false;
  /// The parameters in float64, for values computed a second time. `program`: the plan's whose parameters these are.
  const ParamBlock<double>& again(const PairProgram& program, std::int64_t features) const;

 private:
  MadeOnce<ParamBlock<double>> again_;
};

struct SecondPass;  // second_look.h

/// One block per member of a call, whatever else a member is.
template <class T, class Members>
std::vector<ParamBlock<T>> param_blocks(const plan::PairPlan& plan, const Members& members, std::int64_t features) {
  std::vector<ParamBlock<T>> blocks;
  for (const auto& member : members) blocks.emplace_back(plan, member.params, features);
  return blocks;
}

/// Fills in the uniforms after the parameters.
std::vector<double> with_uniforms(const ir::Program& uniforms, const std::vector<double>& params,
                                  std::int64_t features);

/// Tiles by what their sums came from in the end.
struct TileCounts {
  std::int64_t maxima = 0, doubtful = 0, values = 0;
};

/// A worker's own memory.
struct TileScratch {
  AlignedBuffer acc;
  std::vector<std::uint32_t> doubtful;
  TileCounts counts;
  std::int64_t since_asked = 0;  // pairs times features
  struct Values {  // of the panel that was packed again last
    AlignedBuffer values;
    std::int64_t index = -1;
    PanelKind kind = PanelKind::general;
  };
  Values x, z;
  struct Parts {  // panels, some features at a time
    AlignedBuffer x, z, sums, part;
  } parts;
};

template <class T>
class PairEngine {
 public:
  PairEngine(const PairProgram& program, const PairItem& item, const ParamBlock<T>& params);

  /// Looks at some of the data, where sums of maxima may pay for it, and packs for them from now on if they do.
  void look(double least_gain);

  const plan::PairPlan& plan() const { return program_.plan(); }
  const plan::TileShape& tile() const { return plan().tile; }
  const Packer<T>& x_packer() const { return x_packer_; }
  const Packer<T>& z_packer() const { return z_packer_; }
  std::int64_t tile_size() const { return static_cast<std::int64_t>(tile().rows) * tile().cols(); }
  std::int64_t accumulator_size() const { return tile_size() * std::max<std::int64_t>(1, plan().promoted.size()); }

  /// `tiles` consecutive packed panels of x, the first of which is given, all of one kind, against one of z, to all
  /// their rows of `out`, `out_stride` elements apart. More than one tile: only with one output.
  void compute(const PanelView<T>& x, const PanelView<T>& z, TileScratch& scratch, T* out, std::int64_t out_stride,
               std::int64_t tiles = 1) const;
  /// The two halves of compute(), for several epilogues on one accumulation acc[state][rows][cols].
  void accumulate(const PanelView<T>& x, const PanelView<T>& z, TileScratch& scratch, T* acc) const;
  void finish(const T* acc, const PanelView<T>& x, const PanelView<T>& z, const ParamBlock<T>& params, T* out,
              std::int64_t out_stride) const;
  /// x as values: for tiles that hold pairs of a point with itself, which maxima that are not exact leave doubtful.
  PanelView<T> values_of(const PanelView<T>& x, TileScratch& scratch) const {
    return values_for(x.kind, x_packer_, x, scratch.x);
  }

 private:
  /// Whether the call is to end.
  void ask_now_and_then(TileScratch& scratch, std::int64_t tiles) const;
  plan::UpdateArgs arguments(const PanelView<T>& x, const PanelView<T>& z, bool fast, T* acc) const;
  plan::UpdateArgs maxima_arguments(const PanelView<T>& x, const PanelView<T>& z, TileScratch& scratch, T* acc,
                                     std::int64_t tiles) const;
  /// Whether pairs of these panels may have to be computed again, by look_again().
  bool looks_again(const PanelView<T>& x, const PanelView<T>& z) const {
    const plan::PairGuard& guard = plan().guard;
    return !guard.sums.empty() && (guard.close_sums > 0 || common(x.kind, z.kind) != PanelKind::finite);
  }
  void look_again(const T* acc, const PanelView<T>& x, const PanelView<T>& z, const ParamBlock<T>& params, T* out,
                  std::int64_t out_stride) const;
  void compute_values(const PanelView<T>& x, const PanelView<T>& z, T* acc, T* out, std::int64_t out_stride,
                      std::int64_t tiles) const;
  void compute_maxima(const PanelView<T>& x, const PanelView<T>& z, TileScratch& scratch, T* out,
                        std::int64_t out_stride, std::int64_t tiles) const;
  /// Where panels have no values: `tiles` accumulators one after the other, from panels that are packed here.
  void accumulate_parts(const PanelView<T>& x, const PanelView<T>& z, TileScratch& scratch, T* acc,
                        std::int64_t tiles) const;
  void accumulate_part(plan::UpdateArgs args, bool fast, T* acc, TileScratch::Parts& parts, bool is_first) const;
  void accumulate_values(const PanelView<T>& x, const PanelView<T>& z, T* acc) const;
  void accumulate_maxima(const PanelView<T>& x, const PanelView<T>& z, TileScratch& scratch, T* acc) const;
  /// Features of a part, and the lines that panels have of them.
  struct Part {
    std::int64_t features, x_lines, z_lines;
  };
  void add_parts(const jit::UpdateKernel& kernel, plan::UpdateArgs args, const Part& part) const;
  /// Whether a panel of `kind` is packed again for tiles of values with one of kind `other`.
  bool packed_again(PanelKind other, PanelKind kind) const {
    return kind == PanelKind::maxima ||
           (scales_ && kind != PanelKind::general && other == PanelKind::general);
  }
  PanelView<T> values_for(PanelKind other, const Packer<T>& packer, const PanelView<T>& panel,
                          TileScratch::Values& values) const;
  PanelView<T> panel_after(const PanelView<T>& x, std::int64_t tiles) const {
    return {x.values + tiles * x_packer_.panel_size(), x.slots + tiles * x_packer_.slots_size(), x.index + tiles,
            x.kind};
  }

  const PairProgram& program_;
  const PairItem& item_;
  const ParamBlock<T>& params_;
  Packer<T> x_packer_, z_packer_;
  bool scales_;  // panels of the fast variant's magnitudes hold them times a scale, which the general one does not know
  std::int64_t chunk_;
  std::int64_t part_features_;  // 0: panels hold all features
  bool totals_;  // of so many features that promoted sums are added up part by part
  std::vector<T> identity_, weights_;
  const jit::UpdateKernel* fused_[2];  // general, fast; null where the two programs do not fit one kernel
  std::shared_ptr<const MaximaOf<T>> maxima_;           // null: none
  std::vector<T> maxima_params_;
  const jit::UpdateKernel* fused_maxima_ = nullptr;
  std::shared_ptr<const MadeOnce<SecondPass>> second_pass_;  // null: no second look
};

extern template struct ParamBlock<float>;
extern template struct ParamBlock<double>;
extern template class PairEngine<float>;
extern template class PairEngine<double>;

}  // namespace mercer::cpu
