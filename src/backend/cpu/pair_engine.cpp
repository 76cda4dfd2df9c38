#include "backend/cpu/pair_engine.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace mercer::cpu {

std::vector<double> with_uniforms(const ir::Program& uniforms, const std::vector<double>& params,
                                  std::int64_t features) {
  std::vector<double> values = params;
  if (uniforms.outputs.empty()) return values;
  std::vector<double> inputs;
  for (const ir::Input& input : uniforms.inputs)
    inputs.push_back(input.site == ir::Site::features ? static_cast<double>(features) : params[input.slot]);
  const std::vector<double> results = ir::run<double>(uniforms, inputs);
  values.insert(values.end(), results.begin(), results.end());
  return values;
}

template <class T>
ParamBlock<T>::ParamBlock(const plan::PairPlan& plan, const std::vector<double>& params, std::int64_t features)
    : wide(with_uniforms(plan.general.uniforms, params, features)) {
  general.assign(wide.begin(), wide.end());
  if (!plan.has_fast) return;
  const std::vector<double> values = with_uniforms(plan.fast.uniforms, params, features);
  fast.assign(values.begin(), values.end());
  auto all_normal = [&](const ir::Program& program) {
    for (int u : plan.fast.reciprocals) {
      const int slot = static_cast<int>(params.size()) + u;
      const auto& inputs = program.inputs;
      const bool read = std::find(inputs.begin(), inputs.end(), ir::Input{ir::Site::param, slot}) != inputs.end();
      if (read && !std::isnormal(fast[slot])) return false;
    }
    return true;
  };
  fast_update = all_normal(plan.fast.update);
  fast_epilogue = all_normal(plan.fast.epilogue);
}

template <class T>
PairEngine<T>::PairEngine(const PairProgram& program, const PairItem& item, const ParamBlock<T>& params)
    : program_(program), item_(item), params_(params),
      x_packer_(program.packs.x, item.x, program.plan().tile.rows, item.weights, params.wide),
      z_packer_(program.packs.z, item.z, program.plan().tile.cols(), item.weights, params.wide),
      chunk_(program.plan().chunk(item.x.features)),
      identity_(program.plan().general.identity.begin(), program.plan().general.identity.end()) {
  fused_[0] = program.kernels.fused(false);
  fused_[1] = params.fast_update && params.fast_epilogue ? program.kernels.fused(true) : nullptr;
  if (item.weights) weights_.assign(item.weights, item.weights + item.x.features);
}

template <class T>
plan::UpdateArgs PairEngine<T>::arguments(const T* xs, const T* x_slots, const T* zs, const T* z_slots, bool fast,
                                          T* acc) const {
  plan::UpdateArgs args{};
  args.x = xs;
  args.z = zs;
  args.w = weights_.data();
  args.params = (fast ? params_.fast : params_.general).data();
  args.row = x_slots;
  args.col = z_slots;
  args.acc = acc;
  args.identity = identity_.data();
  args.k = item_.x.features;
  args.chunk = chunk_;
  return args;
}

template <class T>
void PairEngine<T>::compute(const T* xs, const T* x_slots, const T* zs, const T* z_slots, bool finite, T* acc, T* out,
                            std::int64_t out_stride, std::int64_t tiles) const {
  if (tiles > 1 && plan().problem.outputs.size() > 1)  // a second tile would write over the first one's planes
    fail(ErrorKind::compile, "pairs: kernels of several outputs take one tile a call. Received {}.", tiles);
  const bool fast = finite && params_.fast_update;
  if (fast == (finite && params_.fast_epilogue) && fused_[fast]) {
    plan::UpdateArgs args = arguments(xs, x_slots, zs, z_slots, fast, acc);
    args.out = out;
    args.out_stride = out_stride * static_cast<std::int64_t>(sizeof(T));
    args.tiles = tiles;
    return (*fused_[fast])(args);
  }
  for (std::int64_t t = 0; t < tiles; ++t) {
    const T* slots = x_slots + t * x_packer_.slots_size();
    accumulate(xs + t * x_packer_.panel_size(), slots, zs, z_slots, finite, acc);
    finish(acc, slots, z_slots, params_, finite, out + t * tile().rows * out_stride, out_stride);
  }
}

template <class T>
void PairEngine<T>::accumulate(const T* xs, const T* x_slots, const T* zs, const T* z_slots, bool finite,
                               T* acc) const {
  const bool fast = finite && params_.fast_update;
  const jit::UpdateKernel* update = program_.kernels.variant(fast).update.get();
  if (update) (*update)(arguments(xs, x_slots, zs, z_slots, fast, acc));
}

template <class T>
void PairEngine<T>::finish(const T* acc, const T* x_slots, const T* z_slots, const ParamBlock<T>& params,
                           bool finite, T* out, std::int64_t out_stride) const {
  const bool fast = finite && params.fast_epilogue;
  const plan::EpilogueArgs args{acc, x_slots, z_slots, (fast ? params.fast : params.general).data(), out,
                                out_stride * static_cast<std::int64_t>(sizeof(T)), tile().rows};
  (*program_.kernels.variant(fast).epilogue)(args);
}

template struct ParamBlock<float>;
template struct ParamBlock<double>;
template class PairEngine<float>;
template class PairEngine<double>;

}  // namespace mercer::cpu
