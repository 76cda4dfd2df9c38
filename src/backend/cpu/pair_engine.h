// Tiles of pairs: accumulate over the features, then the epilogue, in one kernel where both fit the registers. Every
// CPU operation is a driver around this class.
#pragma once

#include <vector>

#include "backend/cpu/pack.h"
#include "jit/compile.h"

namespace mercer::cpu {

/// Everything compiled for one plan.
struct PairProgram {
  explicit PairProgram(std::shared_ptr<const plan::PairPlan> plan) : kernels(plan), packs(*plan) {}
  const plan::PairPlan& plan() const { return kernels.plan(); }
  jit::PairKernels kernels;
  PackPrograms packs;
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
};

/// One block per member of a call, whatever else a member is.
template <class T, class Members>
std::vector<ParamBlock<T>> param_blocks(const plan::PairPlan& plan, const Members& members, std::int64_t features) {
  std::vector<ParamBlock<T>> blocks;
  for (const auto& member : members) blocks.emplace_back(plan, member.params, features);
  return blocks;
}

/// Fills in the uniforms behind the parameters.
std::vector<double> with_uniforms(const ir::Program& uniforms, const std::vector<double>& params,
                                  std::int64_t features);

template <class T>
class PairEngine {
 public:
  PairEngine(const PairProgram& program, const PairItem& item, const ParamBlock<T>& params);

  const plan::PairPlan& plan() const { return program_.plan(); }
  const plan::TileShape& tile() const { return plan().tile; }
  const Packer<T>& x_packer() const { return x_packer_; }
  const Packer<T>& z_packer() const { return z_packer_; }
  std::int64_t tile_size() const { return static_cast<std::int64_t>(tile().rows) * tile().cols(); }
  std::int64_t accumulator_size() const { return tile_size() * std::max<std::int64_t>(1, plan().promoted.size()); }

  /// `tiles` consecutive packed panels of x against one of z, to all their rows of `out`, `out_stride` elements apart;
  /// acc is scratch. `finite` holds for all of them. More than one tile: only with one output.
  void compute(const T* xs, const T* x_slots, const T* zs, const T* z_slots, bool finite, T* acc, T* out,
               std::int64_t out_stride, std::int64_t tiles = 1) const;
  /// The two halves of compute(), for several epilogues on one accumulation acc[state][rows][cols].
  void accumulate(const T* xs, const T* x_slots, const T* zs, const T* z_slots, bool finite, T* acc) const;
  void finish(const T* acc, const T* x_slots, const T* z_slots, const ParamBlock<T>& params, bool finite, T* out,
              std::int64_t out_stride) const;

 private:
  plan::UpdateArgs arguments(const T* xs, const T* x_slots, const T* zs, const T* z_slots, bool fast, T* acc) const;

  const PairProgram& program_;
  const PairItem& item_;
  const ParamBlock<T>& params_;
  Packer<T> x_packer_, z_packer_;
  std::int64_t chunk_;
  std::vector<T> identity_, weights_;
  const jit::UpdateKernel* fused_[2];  // general, fast; null where the two programs do not fit one kernel
};

extern template struct ParamBlock<float>;
extern template struct ParamBlock<double>;
extern template class PairEngine<float>;
extern template class PairEngine<double>;

}  // namespace mercer::cpu
