// A second look at a tile: pairs whose sums left the range, or are so small next to their points that they lost digits
// (plan/cpu/guard.h), are computed again.
//
//   float32   in float64, whose tiles have a second look of their own
//   float64   by formulas whose sums are scaled (ir/passes/safe_norm.h)
#pragma once

#include <vector>

#include "backend/cpu/pairs/pair_engine.h"

namespace mercer::cpu {

/// The float64 panels of one side, shared by the tiles and threads of a call.
class SharedPanels {
 public:
  explicit SharedPanels(const Packer<double>& packer);
  /// Where all of them would take too much memory, panels are packed into `own` each time.
  PanelView<double> view(std::int64_t p, PackedSide<double>& own) const;

 private:
  const Packer<double>& packer_;
  std::vector<MadeOnce<PackedSide<double>>> panels_;  // empty: they would
};

/// What the second looks of one engine share.
struct SecondPass {
  SecondPass(const PairProgram& program, const PairItem& item, const ParamBlock<double>& params);
  PairEngine<double> engine;
  SharedPanels x, z;
};

/// A tile whose sums are known. Its values are replaced where that is needed.
template <class T>
struct SummedTile {
  const T* acc;
  const PanelView<T>&x, &z;
  T* out;
  std::int64_t out_stride;
};

/// A run of tiles whose outputs show their sums.
template <class T>
struct TileRun {
  const PanelView<T>&x, &z;  // x: the first panel, whose slots the next one's follow
  std::int64_t slots_size;
  const T* out;
  std::int64_t out_stride, tiles;
};

/// The first tile from number `from` on whose outputs leave it open that a pair needs a second look, or their count.
template <class T>
std::int64_t next_to_look_at(const PairProgram& program, const TileRun<T>& run, std::int64_t from);

/// The sums are made with the parameters `own`, the values with `params`.
template <class T>
void second_look(const PairProgram& program, const PairItem& item, const MadeOnce<SecondPass>& pass,
                 const ParamBlock<T>& own, const ParamBlock<T>& params, const SummedTile<T>& tile);

}  // namespace mercer::cpu
